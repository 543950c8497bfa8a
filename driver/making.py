"""Parts of the agent that are made from its settings alone: the API server's client, and what prepares claims."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from driver.model import DriverFiles, MigSupport, NodeInventory
from driver.offering import Offering
from driver.prepare import DeviceNodes, DriverRoot, HostEdits, MigDoor, MigStep, Preparer
from driver.prepare.steps import Faults, no_faults
from driver.settings import Settings
from kubeletplugin.client import KubeClient
from native.capabilities import capability_minor, make_capability_node
from native.devnodes import read_node

if TYPE_CHECKING:
    from native.nvml.session import NvmlSession


def connect(settings: Settings) -> KubeClient:
    """The API server that the settings name.

    Raises:
        ValueError: the kubeconfig or the pod's service account cannot be used; the message says why.
    """
    if settings.api_server:
        return KubeClient(settings.api_server)
    if settings.kubeconfig:
        return KubeClient.from_kubeconfig(Path(settings.kubeconfig))
    return KubeClient.from_pod()


def make_preparer(
    settings: Settings,
    pool: str,
    boot_id: str | None,
    inventory: Callable[[], NodeInventory | None],
    session: Callable[[], NvmlSession | None],
    offering: Offering,
    faults: Faults = no_faults,
    changed: Callable[[], None] = lambda: None,
) -> Preparer:
    """What prepares claims with the driver's files, device nodes and steps that the settings name.

    Args:
        pool: the node's pool.
        inventory: the newest snapshot.
        session: the door to NVML; None before the first reading.
        offering: has steps of its own.
        faults: told of each crash point that is passed.
        changed: called where the newest snapshot is found to be out of date.
    """
    root = Path(settings.driver_root)
    devices = settings.dev_path.parent
    mig = MigSupport(settings.mig)
    nodes = DeviceNodes(
        lambda path: read_node(devices, path),
        str(settings.host_dev_path.parent),
        require_devices=not settings.plain_device_nodes,
        capabilities=functools.partial(capability_minor, settings.proc_root),
        make_capability=None
        if settings.plain_device_nodes
        else functools.partial(make_capability_node, settings.proc_root, devices),
    )
    door = MigDoor(session, settings.nvml_deadline_seconds)
    return Preparer(
        settings.driver_name,
        pool,
        settings.state_dir,
        Path(settings.cdi_dir),
        inventory,
        edits=HostEdits(
            DriverRoot(root, PurePosixPath(settings.host_driver_path)),
            lambda version: driver_files(root, version),
            spec_path=Path(settings.cdi_base_spec) if settings.cdi_base_spec else None,
            hook_path=settings.cdi_hook,
        ),
        nodes=nodes,
        steps=[
            *offering.first_steps(boot_id),
            MigStep(door, mig, nodes, lambda: boot_id, faults, changed),
            *offering.steps(),
        ],
        mig=mig,
        boot_id=lambda: boot_id,
        faults=faults,
    )


def driver_files(root: Path, version: str) -> DriverFiles:
    """The driver's libraries and programs below a root."""
    from native.driverroot import driver_binaries, driver_libraries

    return DriverFiles(driver_libraries(root, version), driver_binaries(root))
