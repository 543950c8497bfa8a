"""Everything that can be set about the agent: one table of frozen values, from flags, environment and a JSON file.

Precedence: flag, then environment variable (``GPUDRA_`` and the field's name in capitals), then the file named by
``--config``, then the default. A value that cannot be used is refused at start with the name under which it came.
"""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import msgspec

DRIVER_NAME = "gpu.nvidia.com"
ENVIRONMENT_PREFIX = "GPUDRA_"

_CHOICES = {
    "nvml_backend": ("auto", "cffi", "pynvml"),
    "mig": ("off", "static", "dynamic"),
    "device_order": ("pack", "spread"),
    "display_gpus": ("offer", "withhold"),
    "held_gpus": ("offer", "withhold"),
    "mps_daemons": ("child", "pod"),
    "log_level": ("debug", "info", "warning", "error"),
}
_STRATEGIES = ("TimeSlicing", "MPS")
_DNS_SUBDOMAIN = re.compile(r"\A[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*\Z")

Port = Annotated[int, msgspec.Meta(ge=-1, le=65535)]
Seconds = Annotated[float, msgspec.Meta(gt=0, le=86400)]


class SettingsError(ValueError):
    """A setting cannot be used; the message names the flag, the variable or the file it came from."""


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    """The agent's settings. Paths named ``host_...`` are the host's, the others are as this process sees them."""

    driver_name: str = DRIVER_NAME
    node_name: str = ""
    instance_uid: str = ""
    """The pod's UID in a DaemonSet: names the sockets, so that two instances can overlap in an update."""
    namespace: str = "default"
    """Where Events about the node are written."""

    shape_namespace: str = ""
    """Where the ConfigMap with the node's shape is written; empty: nowhere."""

    kubeconfig: str = ""
    """Empty: the pod's service account."""
    api_server: str = ""
    """A plain URL instead of a kubeconfig, for the embedded API server."""

    plugins_dir: str = "/var/lib/kubelet/plugins"
    registry_dir: str = "/var/lib/kubelet/plugins_registry"
    cdi_dir: str = "/var/run/cdi"
    cdi_base_spec: str = ""
    """An nvidia-ctk specification to take the common container edits from; empty: the usual places are tried."""
    cdi_hook: str = ""
    """Host path of nvidia-cdi-hook; empty: no hooks are written by the native generator."""

    driver_root: str = "/"
    host_driver_root: str = ""
    """Where ``driver_root`` is on the host; empty: the same path."""
    sys_root: str = "/sys"
    proc_root: str = "/proc"
    dev_root: str = ""
    """Folder of the device nodes; empty: ``dev`` below the driver root."""
    host_dev_root: str = ""
    """Where ``dev_root`` is on the host; empty: the same path."""
    plain_device_nodes: bool = False
    """Accept plain files as device nodes: for a mock node made without the right to make device nodes."""
    nvml_library: str = ""
    """The libnvidia-ml.so.1 to load; empty: searched below the driver root."""
    nvml_backend: str = "auto"

    mig: str = "static"
    """off, static or dynamic: ``driver.model.MigSupport``."""
    device_order: str = "pack"
    """pack or spread: ``driver.publish.DeviceOrder``."""

    allow_devices: str = ""
    """The GPUs that are offered: selectors of ``driver.inventory.filters``, separated by commas; empty: all."""
    deny_devices: str = ""
    """The GPUs that are not offered, whatever ``allow_devices`` says."""
    display_gpus: str = "offer"
    """offer or withhold: GPUs that a monitor is connected to."""
    held_gpus: str = "offer"
    """offer or withhold: GPUs that processes of the host use while no claim has them."""
    passthrough_devices: str = ""
    """The GPUs that are offered to virtual machines too (VFIO; where the API server keeps no counters, to nobody else):
    selectors."""
    shares: str = ""
    """GPUs in shares (consumable capacity): a JSON object, selector -> number of shares."""
    sharing: str = "TimeSlicing,MPS"
    """Ways of sharing that claims may ask for, separated by commas; empty: none."""
    sharing_seconds: Annotated[float, msgspec.Meta(gt=0, le=35)] = 10.0
    """How long the settings of one claim, or the start of its MPS daemon, may take."""
    mps_dir: str = "/run/gpudra/mps"
    """Folder of the MPS daemons, at the same path on the host."""

    mps_daemons: str = "child"
    """child: MPS daemons are processes of this agent; pod: of a keeper (``gpudra mps``) that serves ``mps_dir``."""

    rescan_seconds: Seconds = 60.0
    nvml_deadline_seconds: Seconds = 30.0
    """How long one reading of the whole node may take before the GPU in hand counts as wedged."""
    driver_retry_seconds: Seconds = 5.0
    """How often a driver that is not there is looked for."""
    prepare_wait_seconds: Annotated[float, msgspec.Meta(ge=0, le=35)] = 20.0
    """How long one Prepare may wait for the driver's first reading of the node or for a GPU whose former claim is
    still being undone, before the kubelet is told to come again (which may take it a minute); 0 does not wait."""

    health_seconds: Seconds = 10.0
    """How often the GPUs' health is probed."""
    health_recovery_seconds: Seconds = 120.0
    """For how long a GPU must be well before a fault counts as passed."""
    ignore_xids: str = ""
    """XIDs that decide nothing, separated by commas."""
    ignore_causes: str = ""
    """Causes of docs/health.md that decide nothing, separated by commas."""
    ignore_devices: str = ""
    """GPUs whose faults decide nothing: device names, PCI addresses or UUIDs, separated by commas."""
    evict: str = "never"
    """From which severity on a taint evicts pods (NoExecute): never, fatal or device."""
    degraded_taints: bool = False
    """Keep new pods also from GPUs that only work less well than they should."""
    reconcile_seconds: Seconds = 300.0
    """How often the API server is asked whether the prepared claims still exist."""
    claim_watches: Annotated[int, msgspec.Meta(ge=0, le=256)] = 16
    """How many prepared claims are watched at the API server, each by a connection; 0: none."""
    idle_seconds: Seconds = 600.0
    """After how long without use a claim's device counts as idle."""
    metadata_versions: str = ""
    """API versions in which containers get their devices' metadata (KEP-5304), separated by commas; empty: none."""

    journal_bytes: Annotated[int, msgspec.Meta(ge=0, le=1 << 40)] = 16 * 1024 * 1024
    """How much the journal may hold; 0: there is none."""
    webhook_url: str = ""
    """Where chosen records of the journal are posted as Slack-compatible JSON; empty: nowhere."""
    webhook_kinds: str = "device.health,node.driver,claim.error"
    """Kinds of records that are posted, separated by commas; a name that ends in a dot takes all below it."""

    metrics_port: Port = 8080
    """0 picks a free port, -1 turns it off."""
    metrics_address: str = "0.0.0.0"  # noqa: S104 - a metrics endpoint is scraped from outside the pod
    health_port: Port = 8081
    log_level: str = "info"

    def __post_init__(self) -> None:
        if not self.node_name:
            raise SettingsError("nodeName is empty: set --node-name or GPUDRA_NODE_NAME to the Node object's name")
        if len(self.driver_name) > 63 or not _DNS_SUBDOMAIN.match(self.driver_name):
            raise SettingsError(
                f"driverName {self.driver_name!r} is no DNS subdomain of at most 63 lower-case characters "
                f"(for example {DRIVER_NAME})"
            )
        if len(self.node_name) > 253 or not _DNS_SUBDOMAIN.match(self.node_name):
            raise SettingsError(f"nodeName {self.node_name!r} is not the name of a Node object (a DNS subdomain)")
        for name, choices in _CHOICES.items():
            if getattr(self, name) not in choices:
                raise SettingsError(f"{_camel(name)} {getattr(self, name)!r} is none of {', '.join(choices)}")
        for name in ("plugins_dir", "registry_dir", "cdi_dir", "driver_root", "sys_root", "proc_root", "mps_dir"):
            value = getattr(self, name)
            if not value.startswith("/"):
                raise SettingsError(f"{_camel(name)} {value!r} is not an absolute path")

        self._check_health()
        self._check_news()
        self._check_offer()
        for name in ("dev_root", "host_dev_root"):
            value = getattr(self, name)
            if value and not (value.startswith("/") and value.rstrip("/").endswith("/dev")):
                raise SettingsError(f"{_camel(name)} {value!r} is not an absolute path that ends in /dev")

    def _check_offer(self) -> None:
        for word in listed(self.sharing):
            if word not in _STRATEGIES:
                raise SettingsError(f"sharing {self.sharing!r}: {word!r} is none of {', '.join(_STRATEGIES)}")
        if self.allow_devices or self.deny_devices or self.passthrough_devices or self.shares:
            from driver.inventory.filters import parse_selectors, parse_shares

            for name, parse in (
                ("allow_devices", parse_selectors),
                ("deny_devices", parse_selectors),
                ("passthrough_devices", parse_selectors),
                ("shares", parse_shares),
            ):
                try:
                    parse(getattr(self, name))
                except ValueError as error:
                    raise SettingsError(f"{_camel(name)}: {error}") from error

    def _check_health(self) -> None:
        for code in listed(self.ignore_xids):
            if not (code.isascii() and code.isdigit()):
                raise SettingsError(f"ignoreXids {self.ignore_xids!r}: {code!r} is not the number of an XID")
        if self.ignore_causes:
            from driver.health.findings import CAUSES

            for cause in listed(self.ignore_causes):
                if cause not in CAUSES:
                    raise SettingsError(f"ignoreCauses: {cause!r} is none of {', '.join(CAUSES)}")
        if self.evict not in {"never", "fatal", "device"}:
            raise SettingsError(f"evict {self.evict!r} is none of never, fatal, device")

    def _check_news(self) -> None:
        if 0 < self.journal_bytes < 1 << 20:
            raise SettingsError(
                f"journalBytes {self.journal_bytes} is too little: at least 1048576, or 0 for no journal"
            )
        if self.metadata_versions:
            from kubeletplugin.devicemetadata import KNOWN_VERSIONS

            for version in listed(self.metadata_versions):
                if version not in KNOWN_VERSIONS:
                    raise SettingsError(f"metadataVersions: {version!r} is none of {', '.join(KNOWN_VERSIONS)}")
        if self.webhook_url and not self.webhook_url.startswith(("https://", "http://")):
            raise SettingsError("webhookUrl is not an http or https URL")

    @property
    def state_dir(self) -> Path:
        """``<plugins>/<driver>/gpudra``: ours alone."""
        return Path(self.plugins_dir) / self.driver_name / "gpudra"

    @property
    def dev_path(self) -> Path:
        """The folder of the device nodes, as this process sees it."""
        return Path(self.dev_root) if self.dev_root else Path(self.driver_root) / "dev"

    @property
    def host_dev_path(self) -> Path:
        """The folder of the device nodes, as the container runtime sees it."""
        if self.host_dev_root:
            return Path(self.host_dev_root)
        if self.dev_root:
            return Path(self.dev_root)
        return self.host_driver_path / "dev"

    @property
    def host_driver_path(self) -> Path:
        """The driver root, as the container runtime sees it."""
        return Path(self.host_driver_root or self.driver_root)


def listed(text: str) -> tuple[str, ...]:
    """The words of a setting that is a list separated by commas."""
    return tuple(word for part in text.split(",") if (word := part.strip()))


def _camel(name: str) -> str:
    head, *rest = name.split("_")
    return head + "".join(part.capitalize() for part in rest)


FIELDS: Mapping[str, msgspec.structs.FieldInfo] = {f.name: f for f in msgspec.structs.fields(Settings)}


def flag(name: str) -> str:
    """The command-line flag of a field: ``node_name`` is ``--node-name``."""
    return "--" + name.replace("_", "-")


def load(
    flags: Mapping[str, Any],
    environment: Mapping[str, str] | None = None,
    config: Path | None = None,
) -> Settings:
    """Settings from their three sources.

    Args:
        flags: field name -> value; None stands for a flag that was not given.
        environment: defaults to ``os.environ``.
        config: a JSON file with fields in camelCase.

    Raises:
        SettingsError: a source names an unknown field or holds a value that cannot be used.
    """
    environment = os.environ if environment is None else environment
    values: dict[str, Any] = {}
    origins: dict[str, str] = {}
    for key, value in _from_file(config).items():
        name = next((n for n, f in FIELDS.items() if f.encode_name == key), None)
        if name is None:
            raise SettingsError(f"{config}: unknown setting {key!r} (known: {_known()})")
        values[name], origins[name] = value, f"{config}: {key}"
    for name in FIELDS:
        variable = ENVIRONMENT_PREFIX + name.upper()
        if variable in environment:
            values[name], origins[name] = environment[variable], variable
        if flags.get(name) is not None:
            values[name], origins[name] = flags[name], flag(name)
    values.setdefault("node_name", socket.gethostname().lower())
    converted = {name: _convert(name, value, origins.get(name, name)) for name, value in values.items()}
    return Settings(**converted)


def _known() -> str:
    return ", ".join(sorted(f.encode_name for f in FIELDS.values()))


def _from_file(config: Path | None) -> Mapping[str, Any]:
    if config is None:
        return {}
    try:
        content = msgspec.json.decode(config.read_bytes())
    except OSError as err:
        raise SettingsError(f"--config {config} cannot be read: {err.strerror}") from err
    except (msgspec.DecodeError, RecursionError) as err:
        raise SettingsError(f"--config {config} is not JSON: {err}") from err
    if not isinstance(content, dict):
        raise SettingsError(f"--config {config} must hold a JSON object, not {type(content).__name__}")
    return content


def _convert(name: str, value: Any, origin: str) -> Any:
    try:
        return msgspec.convert(value, FIELDS[name].type, strict=False)
    except msgspec.ValidationError as err:
        raise SettingsError(f"{origin}: {value!r} cannot be used: {err}") from err
