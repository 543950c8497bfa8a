"""``gpudra mock``: a GPU node without a GPU, for as long as somebody needs it."""

from __future__ import annotations

import argparse
import os
import shlex
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from driver.cli import mocktexts as texts

if TYPE_CHECKING:
    from native.mock import Failure, MockNode
    from native.nvml.types import NvmlSnapshot
    from native.sysfs import HostTopology

Verb = Callable[[argparse.Namespace], int]
_STATES = ("ok", "lost", "silent")
_DRIVER = ("loaded", "unloaded", "reload", "mismatch", "match")


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Describe the verb and its own verbs."""
    parser = subparsers.add_parser(
        "mock",
        help="a GPU node without a GPU",
        description=texts.DESCRIPTION,
        epilog=texts.EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    verbs = parser.add_subparsers(dest="mock_verb", metavar="VERB", required=True)
    _add_life(verbs)
    _add_events(verbs)
    _add_faults(verbs)
    _add_mig(verbs)
    _add_profiles(verbs)
    parser.set_defaults(run=run)


def _verb(verbs: Any, name: str, help_text: str, description: str, call: Verb, *, root: bool = True) -> Any:
    parser = verbs.add_parser(
        name, help=help_text, description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    if root:
        parser.add_argument(
            "--root",
            type=Path,
            default=os.environ.get("GPUDRA_MOCK_ROOT"),
            metavar="DIR",
            help="folder of the node (default: $GPUDRA_MOCK_ROOT, which `up` tells you to export)",
        )
    parser.set_defaults(call=call)
    return parser


def _add_life(verbs: Any) -> None:
    up = _verb(verbs, "up", "make a node", texts.UP, _up)
    up.add_argument("--profile", default="dgx-h100", metavar="NAME|FILE", help="which machine (default: dgx-h100)")
    _verb(
        verbs,
        "down",
        "delete a node",
        "Delete the node's folder. Programs that use it keep what they have mapped.",
        _down,
    )
    for name, help_text, call in (
        ("unplug", "take a GPU out of the running machine", _unplug),
        ("plug", "put a GPU in again", _plug),
    ):
        parser = _verb(verbs, name, help_text, texts.HOT_PLUG, call)
        parser.add_argument("gpu", metavar="GPU", help="index or PCI address")
        parser.add_argument(
            "--first", choices=("nvml", "sysfs"), help="what notices first (default: nvml to unplug, sysfs to plug)"
        )


def _add_events(verbs: Any) -> None:
    setting = _verb(verbs, "set", "set numbers of a GPU, its state, or the driver's", texts.SET, _set)
    setting.add_argument("gpu", nargs="?", metavar="GPU", help="index or PCI address")
    setting.add_argument("fields", nargs="*", metavar="FIELD=NUMBER", help="-1 is: this board does not have it")
    setting.add_argument("--state", choices=_STATES, help="lost: GPU_IS_LOST; silent: calls do not come back")
    setting.add_argument("--driver", choices=_DRIVER, help="the kernel driver; needs no GPU")
    xid = _verb(verbs, "xid", "report an XID", texts.XID, _xid)
    xid.add_argument("gpu", metavar="GPU", help="index or PCI address")
    xid.add_argument("code", type=int, metavar="CODE", help="79: fallen off the bus; 48: double-bit ECC; 94, 95: ...")
    xid.add_argument("--gi", type=int, metavar="ID", help="GPU instance (default: the whole GPU)")
    xid.add_argument("--ci", type=int, metavar="ID", help="compute instance")


def _add_faults(verbs: Any) -> None:
    fault = _verb(verbs, "fault", "let functions fail, hang or take long", texts.FAULT, _fault)
    fault.add_argument("function", nargs="?", metavar="FUNCTION", help="an NVML function, or its beginning and *")
    fault.add_argument("--gpu", metavar="GPU", help="index or PCI address (default: all)")
    fault.add_argument("--code", metavar="CODE", help="what it returns: UNKNOWN, GPU_IS_LOST, ... or a number")
    fault.add_argument("--delay", type=int, default=0, metavar="MS", help="how long it takes first; -1: it hangs")
    fault.add_argument("--after", type=int, default=0, metavar="N", help="so many calls pass first")
    fault.add_argument("--times", type=int, metavar="N", help="how often it fails (default: always)")
    fault.add_argument("--probability", type=float, default=1.0, metavar="P", help="from 0 to 1 (default: 1)")
    fault.add_argument("--seed", type=int, default=0, metavar="N", help="which calls it hits by chance")
    fault.add_argument("--sticky", action="store_true", help="once it has failed it always does")
    fault.add_argument("--seconds", type=float, metavar="S", help="ends by itself after so long")
    fault.add_argument("--version", type=int, default=0, metavar="N", help="refuse only structs of this version")
    fault.add_argument("--clear", action="store_true", help="take away all faults, those of the profile too")


def _add_mig(verbs: Any) -> None:
    mig = _verb(verbs, "mig", "make and destroy MIG instances", texts.MIG, _mig)
    mig.add_argument("arguments", nargs=argparse.REMAINDER, metavar="-- ...", help="as nvidia-smi mig takes them")


def _add_profiles(verbs: Any) -> None:
    listing = _verb(verbs, "profiles", "list the machines, or show one", texts.PROFILES, _profiles, root=False)
    listing.add_argument("name", nargs="?", metavar="NAME", help="print this profile's YAML, to change it")
    capture = _verb(verbs, "capture", "write a profile from this machine", texts.CAPTURE, _capture, root=False)
    capture.add_argument("--name", default="captured", metavar="NAME", help="name of the profile")
    capture.add_argument("--from", dest="readings", type=Path, metavar="FILE", help="of readings that tests/gpu kept")
    capture.add_argument("--identities", action="store_true", help="keep UUIDs and serial numbers")
    capture.add_argument(
        "--driver-root", type=Path, default=Path("/"), metavar="DIR", help="root of the driver's files"
    )
    capture.add_argument("--sys-root", type=Path, default=Path("/sys"), metavar="DIR", help="sysfs")
    capture.add_argument("--proc-root", type=Path, default=Path("/proc"), metavar="DIR", help="procfs")
    capture.add_argument("--nvml-library", type=Path, metavar="FILE", help="libnvidia-ml.so.1 to load")


def run(options: argparse.Namespace) -> int:
    """Run a verb of ``gpudra mock``."""
    from driver.cli.main import UsageError

    try:
        from native.mock import BuildError
        from native.nvml.errors import NvmlError
    except ModuleNotFoundError as error:
        raise UsageError(
            f"this installation has no mock ({error}): install gpudra[cli], not the agent's image"
        ) from error
    try:
        return int(options.call(options))
    except (OSError, ValueError, BuildError, NvmlError) as error:
        raise UsageError(str(error)) from error


def _root(options: argparse.Namespace) -> Path:
    if options.root is None:
        raise ValueError("which node? Give --root DIR, or export GPUDRA_MOCK_ROOT as `gpudra mock up` says")
    return Path(options.root)


def _open(options: argparse.Namespace) -> MockNode:
    from native.mock import MockNode

    return MockNode.open(_root(options))


def _address(node: MockNode, text: str) -> str:
    """A GPU's address: given as such, or by index."""
    gpus = node.profile.gpus
    if not text.isdigit():
        return text
    if int(text) >= len(gpus):
        raise ValueError(f"the node has no GPU {text}, only 0 to {len(gpus) - 1}")
    return gpus[int(text)].address


def _up(options: argparse.Namespace) -> int:
    from native.mock import MockNode

    node = MockNode.create(_root(options), options.profile)
    exports = {"GPUDRA_MOCK_ROOT": node.root, **node.environment, "GPUDRA_MOCK_LIBRARY": node.library}
    print(f"# {node.profile.name}: {node.profile.description}. Not hardware.")
    for name, value in exports.items():
        print(f"export {name}={shlex.quote(str(value))}")
    print(f"# its nvidia-smi: {node.smi}")
    print(f"# an agent on it: gpudra agent --mock-root {shlex.quote(str(node.root))} ...")
    return 0


def _down(options: argparse.Namespace) -> int:
    _open(options).remove()
    return 0


def _unplug(options: argparse.Namespace) -> int:
    node = _open(options)
    node.unplug(_address(node, options.gpu), first=options.first or "nvml")
    return 0


def _plug(options: argparse.Namespace) -> int:
    node = _open(options)
    node.plug(_address(node, options.gpu), first=options.first or "sysfs")
    return 0


def _set(options: argparse.Namespace) -> int:
    node = _open(options)
    if options.driver:
        _set_driver(node, options.driver)
    if options.gpu is None:
        if not options.driver:
            raise ValueError("nothing to set: name a GPU and FIELD=NUMBER or --state, or give --driver")
        return 0
    address = _address(node, options.gpu)
    pairs = [_pair(node, field) for field in options.fields]
    if options.state:
        node.set_gpu_state(address, options.state)
    for name, value in pairs:
        node.set_number(address, name, value)
    return 0


def _set_driver(node: MockNode, state: str) -> None:
    if state == "reload":
        node.reload_driver()
    elif state in ("mismatch", "match"):
        node.set_version_mismatch(state == "mismatch")
    else:
        node.set_driver_loaded(state == "loaded")


def _pair(node: MockNode, text: str) -> tuple[str, int]:
    name, equals, number = text.partition("=")
    if name not in node.numbers():
        raise ValueError(f"a GPU has no number {name!r}, but {', '.join(node.numbers())}")
    try:
        return name, int(number, 0)
    except ValueError:
        raise ValueError(f"{name}{equals}{number}: a whole number is expected, as in {name}=1") from None


def _xid(options: argparse.Namespace) -> int:
    node = _open(options)
    node.xid(_address(node, options.gpu), options.code, gi=options.gi, ci=options.ci)
    return 0


def _fault(options: argparse.Namespace) -> int:
    node = _open(options)
    if options.clear:
        node.set_failures([])
    if options.function is None:
        for failure in node.failures():
            print(_shown(failure))
        return 0
    node.set_failures([*node.failures(), _failure(node, options)])
    return 0


def _failure(node: MockNode, options: argparse.Namespace) -> Failure:
    from native.mock import Failure
    from native.mock.profile import failing
    from native.nvml.errors import NvmlReturn

    names = {code.name: int(code) for code in NvmlReturn}
    code = options.code or ("ARGUMENT_VERSION_MISMATCH" if options.version else None)
    if code is not None and not code.isdigit() and code not in names:
        raise ValueError(f"{code!r} is no code, but a number or one of {', '.join(names)}")
    failing(options.function, "FUNCTION")
    if not 0 <= options.probability <= 1:
        raise ValueError(f"--probability {options.probability}: from 0 to 1")
    return Failure(
        options.function,
        -1 if code is None else names.get(code, int(code) if code.isdigit() else -1),
        _address(node, options.gpu) if options.gpu else None,
        options.delay,
        after=options.after,
        times=options.times,
        probability=options.probability,
        seed=options.seed,
        sticky=options.sticky,
        seconds=options.seconds,
        version=options.version,
    )


def _shown(failure: Failure) -> str:
    plain = replace(failure, code=-1, address=None, delay_ms=0, after=0, times=None, probability=1.0, seed=0)
    plain = replace(plain, sticky=False, seconds=None, version=0)
    told = {
        name: getattr(failure, name)
        for name in type(failure).__dataclass_fields__
        if getattr(plain, name) != getattr(failure, name)
    }
    return " ".join([failure.function, *(f"{name}={value}" for name, value in told.items())])


def _mig(options: argparse.Namespace) -> int:
    node = _open(options)
    given = [argument for argument in options.arguments if argument != "--"]
    mode = {"on": "1", "off": "0"}.get(given[0]) if given else None
    command = ["mig", *given] if mode is None else ["-mig", mode, *given[1:]]
    try:
        print(node.nvidia_smi(*command), end="")
    except subprocess.CalledProcessError as error:
        print(error.stdout + error.stderr, end="", file=sys.stderr)
        return 1
    return 0


def _profiles(options: argparse.Namespace) -> int:
    from native.mock import profiles

    if options.name is not None:
        print(profiles.text(options.name), end="")
        return 0
    for name in profiles.names():
        print(f"{name:<14}{profiles.load(name).description}")
    return 0


def _capture(options: argparse.Namespace) -> int:
    import yaml

    from native.mock import capture, readings

    if options.readings is not None:
        try:
            snapshot, host = readings.load(options.readings.read_text(encoding="utf-8"))
        except ValueError as error:
            raise ValueError(f"{options.readings}: {error}") from error
    else:
        snapshot, host = _read_machine(options)
    found = capture.document(snapshot, host, name=options.name, identities=options.identities)
    print(yaml.safe_dump(found, sort_keys=False, width=120), end="")
    return 0


def _read_machine(options: argparse.Namespace) -> tuple[NvmlSnapshot, HostTopology]:
    from native.driverroot import find_library
    from native.nvml.opening import make_backend
    from native.sysfs import read_host

    backend = make_backend(options.nvml_library or find_library(options.driver_root))
    backend.open()
    try:
        return backend.snapshot(), read_host(options.sys_root, options.proc_root)
    finally:
        backend.close()
