"""``gpudra agent``: the daemon of a node."""

from __future__ import annotations

import argparse
import faulthandler
import gc
import logging
import os
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from driver import settings as settings_module
from driver.settings import FIELDS, Settings, SettingsError, flag

if TYPE_CHECKING:
    from native.mock import MockNode

_DESCRIPTION = """\
The agent of a GPU node. It registers with the kubelet as the DRA driver's plugin, publishes the node's GPUs as
ResourceSlices, and prepares the devices of allocated claims as CDI specifications.

It starts without a GPU driver and without an API server: it registers, undoes and finishes what was under way,
serves Unprepare, and publishes once the first whole reading of the node is there. On SIGTERM it finishes the calls
in hand, removes its own sockets and leaves the published slices to its successor. On SIGUSR2 it writes the stacks of
all threads to its log.

Every flag can be an environment variable (GPUDRA_NODE_NAME for --node-name) or a field of the JSON file named by
--config (nodeName); a flag wins over a variable, a variable over the file.
"""

_EXAMPLES = """\
examples:
  in a DaemonSet      gpudra agent --driver-root /driver-root --host-driver-root /
  beside a cluster    gpudra agent --node-name node-a --kubeconfig ~/.kube/config --mock-profile dgx-h100
"""

GROUPS: Mapping[str, Mapping[str, str]] = {
    "identity": {
        "driver_name": "name of the DRA driver, as claims and classes know it (default: gpu.nvidia.com)",
        "node_name": "name of the Node object, from the downward API's spec.nodeName (default: the host's name)",
        "instance_uid": "the pod's UID; names the sockets, so that an update's two instances can overlap",
        "namespace": "namespace for Events about the node (default: default)",
        "shape_namespace": "namespace of a ConfigMap that says what a new node of this kind publishes, as "
        "docs/shape.md describes (default: none is written)",
    },
    "the cluster": {
        "kubeconfig": "a kubeconfig file (default: the pod's service account)",
        "api_server": "plain URL of an API server without authentication, instead of a kubeconfig",
        "plugins_dir": "the kubelet's folder of plugin data (default: /var/lib/kubelet/plugins)",
        "registry_dir": "the kubelet's registration folder (default: /var/lib/kubelet/plugins_registry); k3s, k0s and "
        "microk8s have another kubelet root",
    },
    "containers": {
        "cdi_dir": "where CDI specifications are written; the runtime must read it (default: /var/run/cdi)",
        "cdi_base_spec": "a specification made by nvidia-ctk, to take libraries and binaries from (default: etc/cdi "
        "and var/run/cdi below the driver root are tried; without one the agent lists them itself)",
        "cdi_hook": "host path of nvidia-cdi-hook, for the agent's own list (default: no hooks)",
    },
    "the machine": {
        "driver_root": "where the NVIDIA driver's files are, as the agent sees them (default: /)",
        "host_driver_root": "the same folder as the host sees it (default: the same path)",
        "sys_root": "sysfs (default: /sys)",
        "proc_root": "procfs (default: /proc)",
        "dev_root": "folder of the device nodes (default: dev below the driver root)",
        "host_dev_root": "the same folder as the host sees it (default: the same path)",
        "nvml_library": "libnvidia-ml.so.1 to load (default: searched below the driver root)",
        "nvml_backend": "auto, cffi or pynvml (default: auto, which is cffi where the extension is there)",
        "rescan_seconds": "how often the node is read without a cause (default: 60)",
        "nvml_deadline_seconds": "after how long a reading that hangs marks its GPU (default: 30)",
        "driver_retry_seconds": "how often an absent driver is looked for (default: 5)",
        "prepare_wait_seconds": "how long a claim waits for the first reading of the node, or for a GPU whose former "
        "claim is still being undone, before the kubelet is told to come again (default: 20, 0: not at all)",
    },
    "partitions": {
        "mig": "off: whole GPUs only; static: MIG devices that somebody makes on the node are handed out; dynamic: "
        "they are made for claims and destroyed with them, where the API server keeps counters (default: static)",
        "device_order": "pack: partitions fill one GPU after the other; spread: all GPUs alike (default: pack)",
    },
    "what is offered, and shared": {
        "allow_devices": "GPUs that are offered, separated by commas: UUIDs, PCI addresses, model=NVIDIA A100*, "
        "index=3 (default: all)",
        "deny_devices": "GPUs that are not offered, in the same words (default: none)",
        "passthrough_devices": "GPUs that are offered to virtual machines too (VFIO), and to nobody else where the API "
        "server keeps no counters, in the same words (default: none)",
        "display_gpus": "offer or withhold GPUs that a monitor is connected to (default: offer)",
        "held_gpus": "offer or withhold GPUs that processes of the host use while no claim has them (default: offer)",
        "shares": 'GPUs that several claims may have shares of, and how many, as {"model=NVIDIA L4*": 4, "index=7": 2} '
        "(default: none)",
        "sharing": "ways of sharing that claims may ask for (default: TimeSlicing,MPS)",
        "sharing_seconds": "how long the settings of one claim or the start of its MPS daemon may take (default: 10)",
        "mps_dir": "folder of the MPS daemons, at the same path on the host (default: /run/gpudra/mps)",
        "mps_daemons": "child: MPS daemons are processes of the agent and end with its pod; pod: gpudra mps, in a pod "
        "of its own, runs them (default: child)",
    },
    "health": {
        "health_seconds": "how often the GPUs' health is probed (default: 10)",
        "health_recovery_seconds": "for how long a GPU must be well before a fault counts as passed (default: 120)",
        "ignore_xids": "XIDs that decide nothing, as 13,31 (default: none beyond those of applications)",
        "ignore_causes": "causes that decide nothing, as thermal-slowdown,pcie-degraded (default: none)",
        "ignore_devices": "GPUs whose faults decide nothing: device names, PCI addresses or UUIDs (default: none)",
        "evict": "never, fatal or device: from which severity on a taint evicts pods (default: never)",
        "degraded_taints": "true: keep new pods also from GPUs that only work less well (default: false)",
    },
    "claims": {
        "reconcile_seconds": "how often the API server is asked whether prepared claims still exist (default: 300)",
        "claim_watches": "how many prepared claims at most are watched at the API server between two such looks, "
        "each by a connection of its own; 0: none (default: 16)",
        "idle_seconds": "after how long without use a claim's device counts as idle (default: 600)",
        "metadata_versions": "versions of the devices' metadata that containers get, as "
        "metadata.resource.k8s.io/v1beta1 (default: none)",
    },
    "the journal": {
        "journal_bytes": "how much the journal may hold, in bytes; 0: no journal (default: 16 MiB)",
        "webhook_url": "where chosen records are posted as Slack-compatible JSON (default: nowhere)",
        "webhook_kinds": "kinds of records that are posted (default: device.health,node.driver,claim.error)",
    },
    "watching the agent": {
        "metrics_port": "port of /metrics; 0: a free one, -1: none (default: 8080)",
        "metrics_address": "address of /metrics and of the health service (default: all)",
        "health_port": "port of the gRPC health service (grpc.health.v1; services liveness and readiness); 0: a free "
        "one, -1: none (default: 8081)",
        "log_level": "debug, info, warning or error (default: info)",
    },
}


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Describe the verb."""
    parser = subparsers.add_parser(
        "agent",
        help="the daemon of a GPU node",
        description=_DESCRIPTION,
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--config", type=Path, metavar="FILE", help="JSON file with settings")
    for title, fields in GROUPS.items():
        group = parser.add_argument_group(title)
        for name, text in fields.items():
            group.add_argument(flag(name), dest=name, metavar=_metavar(name), help=text)
    mock = parser.add_argument_group("a machine that is not there")
    mock.add_argument(
        "--mock-profile",
        metavar="NAME|FILE",
        help="make a mock node of this profile and run on it (needs a C compiler); never for production",
    )
    mock.add_argument(
        "--mock-root", type=Path, metavar="DIR", help="where the mock node stands, or is made if it does not"
    )
    parser.set_defaults(run=run)


def _metavar(name: str) -> str:
    kind = str(FIELDS[name].type)
    if "int" in kind:
        return "PORT" if name.endswith("port") else name.rpartition("_")[2].upper()
    if "float" in kind:
        return "SECONDS"
    return name.rpartition("_")[2].upper()


def run(options: argparse.Namespace) -> int:
    """Run the daemon until SIGTERM or SIGINT; exits with 0 then, with 1 when it cannot go on."""
    from driver.cli.main import UsageError

    flags = {name: getattr(options, name) for fields in GROUPS.values() for name in fields}
    if options.mock_profile or options.mock_root:
        flags = {**_mock_flags(_mock_node(options.mock_profile, options.mock_root)), **_given(flags)}
    try:
        settings = settings_module.load(flags, config=options.config)
    except SettingsError as err:
        raise UsageError(str(err)) from err
    return _serve(settings)


def _given(flags: Mapping[str, str | None]) -> dict[str, str]:
    return {name: value for name, value in flags.items() if value is not None}


def _mock_node(profile: str | None, root: Path | None) -> MockNode:
    from driver.cli.main import UsageError
    from native.mock import MockNode

    if root is None:
        raise UsageError("--mock-profile needs --mock-root, the folder that the mock node stands in")
    try:
        node = MockNode.open(root) if (root / "usr").exists() else MockNode.create(root, profile or "dgx-h100")
    except (OSError, ValueError) as err:
        raise UsageError(f"--mock-profile {profile}: {err}") from err
    node.activate()
    return node


def _mock_flags(node: MockNode) -> dict[str, object]:
    control = node.root / "dev" / "nvidiactl"
    return {
        "plain_device_nodes": not control.is_char_device(),
        "driver_root": str(node.root),
        "sys_root": str(node.root / "sys"),
        "proc_root": str(node.root / "proc"),
        "dev_root": str(node.root / "dev"),
    }


def _serve(settings: Settings) -> int:
    from kubeletplugin.postponed import postpone

    # What is made until the agent serves, stays: a collector that looks through it again and again takes a tenth of the
    # way there. The agent turns it on when all its parts are started.
    gc.disable()
    postpone()
    from driver import logs
    from driver.agent import Agent
    from driver.cli import endings
    from kubeletplugin.operation import operation_id

    logs.setup(settings.log_level, lambda: operation_id.get() or None)
    # For whoever meets an agent that seems to hang: kill -USR2 writes the stacks of all threads to its log.
    faulthandler.register(signal.SIGUSR2, all_threads=True)
    stop = endings.event()
    try:
        code = Agent(settings).run(stop)
    except Exception:
        logging.getLogger(__name__).exception("the agent ends on a fault of its own")
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    # A reading of a dying GPU can hang for ever in the kernel: an ordinary exit would wait for its thread.
    os._exit(code)
