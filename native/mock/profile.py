"""A node profile: the YAML that says what machine the mock is, checked and resolved into frozen values.

The schema is documented in ``profiles/README.md``. Every section must state its source under ``sources``: a profile
that invents silently is worth nothing. Whatever a board does not have is ``null`` and becomes NVML_ERROR_NOT_SUPPORTED.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

from native.mock import boards, pcie
from native.mock.boards import Gpu
from native.mock.fields import Fields
from native.mock.pcie import PciDevice, ProfileError
from native.nvml.errors import NvmlReturn

SCHEMA: Final = "gpudra.mock/v1"
_SECTIONS: Final = ("driver", "host", "gpu", "gpus", "nvlink", "pcie")
_CPUS: Final = re.compile(r"(\d{1,6})(?:-(\d{1,6}))?", re.ASCII)
_ARCHITECTURES: Final = ("x86_64", "aarch64")


@dataclass(frozen=True, slots=True)
class NumaNode:
    """A NUMA node of the host; one without CPUs is the memory of a coherent GPU."""

    node: int
    cpus: str
    """A Linux CPU list (``0-55,112-167``), empty for none."""
    memory_mib: int
    distances: tuple[int, ...]
    socket: int


@dataclass(frozen=True, slots=True)
class Host:
    """The machine around the GPUs."""

    machine: str
    architecture: str
    numa: tuple[NumaNode, ...]
    iommu: bool


@dataclass(frozen=True, slots=True)
class Failure:
    """A function that fails or is slow. Of several that fit a call, the first that fires decides."""

    function: str
    """Its name, or the beginning of one and ``*``."""
    code: int = -1
    """nvmlReturn_t; -1: the function only takes longer."""
    address: str | None = None
    """The GPU it is about; None is all of them."""
    delay_ms: int = 0
    """-1: it does not come back until the rule is taken away."""
    after: int = 0
    """So many calls pass first; with ``times=1`` it is the nth call that fails."""
    times: int | None = None
    """How often it fires; None: without end."""
    probability: float = 1.0
    """From 0 to 1. Which calls fail depends on ``seed`` and the number of the call alone."""
    seed: int = 0
    sticky: bool = False
    """Once it has fired, it always does."""
    seconds: float | None = None
    """It ends so long after it was set; None: never."""
    version: int = 0
    """Refuse only a struct of this version with ARGUMENT_VERSION_MISMATCH, as an older driver does; 0: the call."""


@dataclass(frozen=True, slots=True)
class Profile:
    """A whole node."""

    name: str
    description: str
    sources: Mapping[str, str]
    driver_version: str
    nvml_version: str
    cuda_version: int
    """1000 * major + 10 * minor."""
    host: Host
    gpus: tuple[Gpu, ...]
    """In NVML's index order."""
    devices: tuple[PciDevice, ...]
    failures: tuple[Failure, ...] = ()
    absent: tuple[str, ...] = ()
    """NVML functions that the library truly lacks."""
    topology_matrix: str | None = field(default=None)
    """The public ``topo -m`` matrix that this node's tree claims to reproduce."""

    def gpu(self, address: str) -> Gpu:
        """The GPU at a canonical PCI address.

        Raises:
            KeyError: the node has none there.
        """
        for gpu in self.gpus:
            if gpu.address == address:
                return gpu
        raise KeyError(f"{self.name} has no GPU at {address}: {', '.join(gpu.address for gpu in self.gpus)}")


def load(source: str | Path) -> Profile:
    """Read a profile: a name of ``profiles.names()`` or the path of a YAML file.

    Raises:
        ProfileError: the profile is wrong; names the field.
        FileNotFoundError: neither a known name nor a file.
    """
    from native.mock import profiles

    try:
        text = profiles.text(source)
    except UnicodeDecodeError as error:
        raise ProfileError(str(source), f"is not UTF-8: {error}") from error
    import yaml

    try:
        document = yaml.load(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader))  # noqa: S506  # both are safe loaders
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise ProfileError(str(source), f"is not YAML: {error}") from error
    return parse(document)


def parse(document: object) -> Profile:
    """Check and resolve a decoded profile.

    Raises:
        ProfileError: names the field.
    """
    top = Fields(document)
    if top.text("schema") != SCHEMA:
        raise ProfileError("schema", f"only {SCHEMA} is known")
    name, description = top.text("name"), top.text("description")
    sources = _sources(top.section("sources"))
    driver = top.section("driver")
    version = driver.text("version")
    cuda = _cuda(driver.text("cuda"))
    nvml = driver.text("nvml", f"{cuda // 1000}.{version}")
    absent = tuple(_function(entry, driver.where("absent")) for entry in driver.sequence("absent", []))
    absent = tuple(sorted({*absent, *_abi(driver)}))
    failures = _failures(driver.section("fails", {}), None)
    driver.done()
    host = _host(top.section("host"))
    devices = pcie.read(top.take("pcie"))
    entries = _merged(top.take("gpu", {}), top.sequence("gpus"))
    failures += tuple(rule for entry in entries for rule in _gpu_failures(entry))
    gpus = boards.read(entries, devices, name)
    gpus = boards.connect(gpus, top.section("nvlink", {}), devices)
    matrix = top.take("topology_matrix", None)
    top.done()
    return Profile(name, description, sources, version, nvml, cuda, host, gpus, devices, failures, absent, matrix)


def _sources(section: Fields) -> dict[str, str]:
    found = {key: section.text(key) for key in _SECTIONS}
    section.done()
    return found


def _cuda(text: str) -> int:
    major, _, minor = text.partition(".")
    if not (text.isascii() and major.isdigit() and minor.isdigit()):
        raise ProfileError("driver.cuda", f"{text!r} is not a version such as 13.0")
    return 1000 * int(major) + 10 * int(minor)


@lru_cache(maxsize=1)
def abis() -> Mapping[str, tuple[str, ...]]:
    """Driver branch -> functions of the vendored nvml.h that its own header does not declare yet."""
    document = json.loads((Path(__file__).parent / "abis.json").read_text(encoding="utf-8"))
    return {branch: tuple(entry["absent"]) for branch, entry in document.items()}


def _abi(driver: Fields) -> tuple[str, ...]:
    branch = driver.take("abi", None)
    if branch is None:
        return ()
    if branch not in abis():
        raise ProfileError(driver.where("abi"), f"{branch!r} is none of {', '.join(abis())}")
    return abis()[branch]


def _function(name: object, where: str) -> str:
    if not isinstance(name, str) or not name.startswith("nvml") or len(name) > 63:
        raise ProfileError(where, f"{name!r} is not the name of an NVML function")
    return name


def failing(name: object, where: str) -> str:
    """What a failure may be about: an NVML function, or a step of one of the node's programs (docs/mock.md).

    Raises:
        ProfileError: neither.
    """
    if isinstance(name, str) and name.startswith(("mps.", "nvidia-smi")) and len(name) <= 63:
        return name
    return _function(name, where)


def _failure(function: str, inner: Fields, address: str | None) -> Failure:
    version = inner.number("version", 0, high=255)
    default = "ARGUMENT_VERSION_MISMATCH" if version else None
    code = inner.choice("code", {code.name: int(code) for code in NvmlReturn}, default)
    times = inner.number("times", None)
    seconds, probability = inner.take("seconds", None), inner.take("probability", 1.0)
    if not isinstance(probability, int | float) or isinstance(probability, bool) or not 0 <= probability <= 1:
        raise ProfileError(inner.where("probability"), f"{probability!r} is not a number from 0 to 1")
    if seconds is not None and (not isinstance(seconds, int | float) or isinstance(seconds, bool) or seconds < 0):
        raise ProfileError(inner.where("seconds"), f"{seconds!r} is not a number of seconds")
    return Failure(
        function,
        code if code is not None else -1,
        address,
        inner.number("delay_ms", 0, low=-1),
        after=inner.number("after", 0),
        times=None if times < 0 else times,
        probability=float(probability),
        seed=inner.number("seed", 0),
        sticky=inner.flag("sticky", False) == 1,
        seconds=seconds,
        version=version,
    )


def _failures(section: Fields, address: str | None) -> tuple[Failure, ...]:
    """``{nvmlDeviceGetSerial: NOT_SUPPORTED}`` or ``{nvmlDeviceGetSerial: {code: UNKNOWN, delay_ms: 200}}``."""
    names = {code.name: int(code) for code in NvmlReturn}
    found: list[Failure] = []
    for key in section.names():
        function = failing(key, section.path)
        if isinstance(section.peek(key), Mapping):
            inner = section.section(key)
            found.append(_failure(function, inner, address))
            inner.done()
        else:
            found.append(Failure(function, section.choice(key, names), address))
    return tuple(found)


def _merged(defaults: object, entries: list[Any]) -> list[dict[str, Any]]:
    """Each GPU: what all share, overridden by its own keys (a mapping is replaced as a whole)."""
    shared = Fields(defaults, "gpu").rest()
    return [{**shared, **Fields(entry, f"gpus[{position}]").rest()} for position, entry in enumerate(entries)]


def _gpu_failures(entry: dict[str, Any]) -> tuple[Failure, ...]:
    address = boards.address_of(entry)
    return _failures(Fields(entry.pop("fails", {}), f"gpu {address}.fails"), address)


def _host(section: Fields) -> Host:
    machine = section.text("machine")
    architecture = section.text("architecture", "x86_64")
    if architecture not in _ARCHITECTURES:
        raise ProfileError(section.where("architecture"), f"{architecture!r} is none of {', '.join(_ARCHITECTURES)}")
    iommu = section.flag("iommu", True) == 1
    nodes = [_numa(Fields(entry, f"host.numa[{at}]")) for at, entry in enumerate(section.sequence("numa"))]
    section.done()
    for node in nodes:
        if len(node.distances) != len(nodes):
            raise ProfileError(
                "host.numa", f"node {node.node} states {len(node.distances)} distances, not {len(nodes)}"
            )
    if len({node.node for node in nodes}) != len(nodes):
        raise ProfileError("host.numa", "two nodes have one number")
    return Host(machine, architecture, tuple(nodes), iommu)


def _numa(section: Fields) -> NumaNode:
    node = section.number("node", high=255)
    cpus = section.text("cpus")
    parse_cpus(cpus, section.where("cpus"))
    distances = tuple(section.sequence("distances"))
    if not all(isinstance(value, int) for value in distances):
        raise ProfileError(section.where("distances"), "whole numbers are expected")
    memory, socket = section.number("memory_mib"), section.number("socket", node, high=255)
    section.done()
    return NumaNode(node, cpus, memory, distances, socket)


def parse_cpus(text: str, where: str = "cpus") -> frozenset[int]:
    """The CPU numbers of a Linux CPU list.

    Raises:
        ProfileError: it is none, or a number is beyond the 2047 that the node file holds.
    """
    found: set[int] = set()
    for part in text.split(",") if text else ():
        match = _CPUS.fullmatch(part)
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
        if not first <= last < 2048:
            raise ProfileError(where, f"{text!r} is not a CPU list such as 0-55,112-167 with numbers below 2048")
        found.update(range(first, last + 1))
    return frozenset(found)
