"""Where the commands get their node from: this machine, or a mock one made for the moment."""

from __future__ import annotations

import argparse
import enum
import os
import socket
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from driver.model import NodeInventory, PciAddress

if TYPE_CHECKING:
    from driver.node import NodePaths

_DEADLINE_SECONDS = 30.0


def add_node_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags that say which machine is meant; the agent's flags of the same names mean the same."""
    mock = parser.add_argument_group("a machine that is not here")
    mock.add_argument(
        "--mock-profile",
        metavar="NAME|FILE",
        help="make a mock node of this profile and read that (dgx-h100, gb200, ... or a YAML file; needs a C compiler)",
    )
    here = parser.add_argument_group("this machine")
    here.add_argument("--driver-root", type=Path, default=Path("/"), metavar="DIR", help="root of the driver's files")
    here.add_argument("--sys-root", type=Path, default=Path("/sys"), metavar="DIR", help="sysfs (default: /sys)")
    here.add_argument("--proc-root", type=Path, default=Path("/proc"), metavar="DIR", help="procfs (default: /proc)")
    here.add_argument(
        "--nvml-library",
        type=Path,
        metavar="FILE",
        help="libnvidia-ml.so.1 to load (default: searched below the driver root)",
    )
    here.add_argument(
        "--nvml-backend",
        "--backend",
        dest="nvml_backend",
        choices=("auto", "cffi", "pynvml"),
        default="auto",
        help="how to talk to it (default: auto, which is cffi where the extension is there)",
    )


def add_name_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags that name node and driver."""
    names = parser.add_argument_group("names")
    names.add_argument(
        "--node-name", metavar="NAME", help="name of the Node object (default: the profile's or the host's name)"
    )
    names.add_argument("--driver-name", default="gpu.nvidia.com", metavar="NAME", help="name of the DRA driver")


def node_name(args: argparse.Namespace) -> str:
    """The name given, else that of the mock profile, else the host's."""
    if args.node_name:
        return str(args.node_name)
    if args.mock_profile:
        return Path(args.mock_profile).stem.lower()
    return socket.gethostname().lower()


def read_node(args: argparse.Namespace, *, without_driver: bool = False, mig: bool = False) -> NodeInventory:
    """Read the machine that the flags of ``add_node_arguments`` mean, once.

    Args:
        args: parsed flags.
        without_driver: where the driver does not answer, give what the bus shows (no GPU is READY then).
        mig: read what boards can be divided into also where MIG mode is off.

    Raises:
        UsageError: the mock node cannot be made, or the driver does not answer; says what would help.
    """
    from driver.cli.main import UsageError
    from driver.discovery import DriverUnavailableError
    from driver.inventory import build_inventory
    from driver.node import NodeReader
    from native.sysfs import read_host

    with _paths(args) as paths:
        try:
            reader = NodeReader(paths, backend=args.nvml_backend, deadline=_DEADLINE_SECONDS, mig=mig)
        except (ImportError, ValueError) as error:
            raise UsageError(f"--nvml-backend {args.nvml_backend}: {error}") from error
        try:
            return reader.read()
        except DriverUnavailableError as error:
            if without_driver:
                return build_inventory(None, read_host(paths.sys_root, paths.proc_root), mock=False)
            raise UsageError(str(error)) from error
        except ImportError as error:
            raise UsageError(f"--nvml-backend {args.nvml_backend}: {error}") from error
        finally:
            reader.close()


@contextmanager
def _paths(args: argparse.Namespace) -> Iterator[NodePaths]:
    from driver.node import NodePaths

    if not args.mock_profile:
        yield NodePaths(args.driver_root, args.sys_root, args.proc_root, args.nvml_library)
        return
    from driver.cli.main import UsageError
    from native.mock import BuildError, MockNode, ProfileError

    with tempfile.TemporaryDirectory(prefix="gpudra-mock-") as folder:
        try:
            node = MockNode.create(Path(folder) / "node", args.mock_profile)
        except (OSError, ProfileError, BuildError) as error:
            raise UsageError(f"--mock-profile {args.mock_profile}: {error}") from error
        # The library reads the variables when it is initialised; the commands say themselves that the node is a mock.
        with _environment({"GPUDRA_MOCK_QUIET": "1", **os.environ, **node.environment}):
            yield NodePaths(node.root, node.root / "sys", node.root / "proc")


@contextmanager
def _environment(wanted: dict[str, str]) -> Iterator[None]:
    """The process's variables for a while; a mock node that is gone is named by none of them afterwards."""
    before = dict(os.environ)
    os.environ.update(wanted)
    try:
        yield
    finally:
        for name in wanted.keys() - before.keys():
            os.environ.pop(name, None)
        os.environ.update({name: before[name] for name in wanted.keys() & before.keys()})


def as_json(value: Any) -> Any:
    """A value of the model as plain JSON: fields in camelCase, addresses and enumerations as their text."""
    if isinstance(value, PciAddress):
        return str(value)
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, msgspec.Struct):
        return {_camel(name): as_json(getattr(value, name)) for name in value.__struct_fields__}
    if isinstance(value, tuple | list):
        return [as_json(item) for item in value]
    return value


def _camel(name: str) -> str:
    head, *rest = name.split("_")
    return head + "".join(part.capitalize() for part in rest)
