"""The opaque configuration ``resource.nvidia.com/v1beta1``: what users may write into claims and classes.

Kinds and fields are those of NVIDIA's DRA driver, so that nobody has to change a claim. Users' input is decoded
strictly: what would be ignored silently is an error that names the field and the remedy. Stored data of our own is
decoded leniently, so that a file of a later version can still be read.
"""

from __future__ import annotations

import contextlib
import enum
import re
from collections.abc import Callable, Iterator, Mapping
from typing import TypeAlias, TypeVar

import msgspec

from driver.prepare import strictjson
from driver.prepare.document import Cursor, DocumentError, shown, suggestion
from driver.prepare.quantity import MIB, parse_bytes

API_VERSION = "resource.nvidia.com/v1beta1"
MAX_PARAMETERS_BYTES = 10 * 1024
"""The API server's own limit for opaque parameters."""

_ELSEWHERE = {
    "ComputeDomainChannelConfig": "compute-domain.nvidia.com",
    "ComputeDomainDaemonConfig": "compute-domain.nvidia.com",
}
ALL_DEVICES = "*"
"""As a key of ``defaultPerDevicePinnedMemoryLimit``: every device that no index or UUID names."""
_GPU_KEY = re.compile(r"\A(?:\*|\d{1,3}|(?:GPU|MIG)-[0-9a-fA-F-]{1,64})\Z", re.ASCII)


class Strategy(enum.StrEnum):
    """How several containers share one device."""

    TIME_SLICING = "TimeSlicing"
    MPS = "MPS"


class Interval(enum.StrEnum):
    """How long a process keeps the GPU when it is time-sliced."""

    DEFAULT = "Default"
    SHORT = "Short"
    MEDIUM = "Medium"
    LONG = "Long"


class IommuBackend(enum.StrEnum):
    """Which VFIO interface a virtual machine gets."""

    LEGACY_ONLY = "LegacyOnly"
    PREFER_IOMMUFD = "PreferIommuFD"


class MpsConfig(msgspec.Struct, frozen=True):
    """Limits for CUDA MPS. Memory limits are Kubernetes quantities as written, of one MiB or more."""

    default_active_thread_percentage: int | None = None
    default_pinned_device_memory_limit: str | None = None
    default_per_device_pinned_memory_limit: tuple[tuple[str, str], ...] = ()
    """(index, UUID or ``*``, quantity). Indices count the devices that the configuration is for, in the order of the
    allocation."""
    multi_user: bool = False
    """One server for processes of all user ids; needs compute capability 7.0."""


class Sharing(msgspec.Struct, frozen=True):
    """How a device is shared. Without a strategy it is not configured at all."""

    strategy: Strategy | None = None
    interval: Interval | None = None
    mps: MpsConfig | None = None


class GpuConfig(msgspec.Struct, frozen=True):
    """For full GPUs."""

    sharing: Sharing | None = None
    kind = "GpuConfig"


class MigDeviceConfig(msgspec.Struct, frozen=True):
    """For MIG partitions."""

    sharing: Sharing | None = None
    kind = "MigDeviceConfig"


class VfioDeviceConfig(msgspec.Struct, frozen=True):
    """For GPUs that are passed through to a virtual machine."""

    backend_policy: IommuBackend = IommuBackend.LEGACY_ONLY
    enable_api_device: bool = False
    kind = "VfioDeviceConfig"


DeviceConfig: TypeAlias = GpuConfig | MigDeviceConfig | VfioDeviceConfig
_Value = TypeVar("_Value")


def decode_text(text: str | bytes, path: str = "parameters", *, strict: bool = True) -> DeviceConfig:
    """Decode a configuration from JSON text; where the text is at hand, duplicate keys are errors too.

    Raises:
        DocumentError: as ``decode``, and for text that is no strict JSON.
    """
    try:
        value = strictjson.loads(text, max_bytes=MAX_PARAMETERS_BYTES)
    except strictjson.StrictJSONError as error:
        raise DocumentError(path, str(error)) from error
    return decode(value, path, strict=strict)


def decode(value: object, path: str = "parameters", *, strict: bool = True) -> DeviceConfig:
    """Decode a configuration.

    Args:
        value: the parsed ``opaque.parameters``.
        path: where it stands, for messages.
        strict: unknown fields are errors (users' input); else they are skipped (our own stored data).

    Raises:
        DocumentError: the first fault; names the field and what to write instead.
    """
    config, faults = examine(value, path, strict=strict)
    if config is None:
        raise faults[0]
    return config


def examine(
    value: object, path: str = "parameters", *, strict: bool = True
) -> tuple[DeviceConfig | None, tuple[DocumentError, ...]]:
    """As ``decode``, but with all faults at once; the configuration is None where there are any. Never raises."""
    faults: list[DocumentError] = []
    config: DeviceConfig | None = None
    with _noted(faults):
        fields = _Fields(Cursor(value, path), strict, faults)
        config = _decoder(fields)(fields)
    return (None if faults else config), tuple(faults)


def _decoder(fields: _Fields) -> Callable[[_Fields], DeviceConfig]:
    api_version = fields.get("apiVersion").text()
    if api_version != API_VERSION:
        raise fields.cursor.get("apiVersion").error(f'is {shown(api_version)}, this driver reads "{API_VERSION}"')
    kind = fields.get("kind").text()
    decoder = _DECODERS.get(kind)
    if decoder is not None:
        return decoder
    problem = f"is {shown(kind)}, which is no configuration of this driver"
    if kind in _ELSEWHERE:
        raise fields.cursor.get("kind").error(f'{problem}; give it to the driver "{_ELSEWHERE[kind]}"')
    raise fields.cursor.get("kind").error(problem + suggestion(kind, _DECODERS))


@contextlib.contextmanager
def _noted(faults: list[DocumentError]) -> Iterator[None]:
    """Note a fault and go on behind the block: what stands beside it is read too."""
    try:
        yield
    except DocumentError as error:
        faults.append(error)


class _Fields:
    """The members of one object, of which each must be known; ``finish`` complains about the others."""

    def __init__(self, cursor: Cursor, strict: bool, faults: list[DocumentError]) -> None:
        self.cursor = cursor
        self.strict = strict
        self.faults = faults
        self._known: set[str] = set()
        cursor.as_object()

    def find(self, name: str) -> Cursor | None:
        self._known.add(name)
        return self.cursor.find(name)

    def get(self, name: str) -> Cursor:
        self._known.add(name)
        return self.cursor.get(name)

    def read(self, name: str, convert: Callable[[Cursor], _Value], default: _Value) -> _Value:
        """The member, converted; ``default`` where it is absent or at fault (which is noted)."""
        found = self.find(name)
        if found is not None:
            with _noted(self.faults):
                return convert(found)
        return default

    def below(self, name: str) -> _Fields | None:
        found = self.find(name)
        if found is not None:
            with _noted(self.faults):
                return _Fields(found, self.strict, self.faults)
        return None

    def note(self, name: str, problem: str) -> None:
        self.faults.append(DocumentError(f"{self.cursor.path}.{name}", problem))

    def finish(self, remedies: Mapping[str, str] | None = None) -> None:
        """Note the members that were not asked for; ``remedies``: what to say of some of them."""
        if not self.strict:
            return
        for name in self.cursor.as_object():
            if name not in self._known:
                remedy = (remedies or {}).get(name) or suggestion(name, self._known)
                self.note(name[:64], f"is no field of this kind{remedy}")


def _gpu(fields: _Fields) -> GpuConfig:
    sharing = _sharing(fields, time_slicing=True)
    fields.finish()
    return GpuConfig(sharing)


def _mig(fields: _Fields) -> MigDeviceConfig:
    sharing = _sharing(fields, time_slicing=False)
    fields.finish()
    return MigDeviceConfig(sharing)


def _vfio(fields: _Fields) -> VfioDeviceConfig:
    iommu = fields.below("iommu")
    fields.finish()
    if iommu is None:
        return VfioDeviceConfig()
    policy = iommu.read("backendPolicy", lambda found: IommuBackend(_one_of(found, IommuBackend)), None)
    device = iommu.read("enableAPIDevice", Cursor.boolean, False)
    iommu.finish()
    return VfioDeviceConfig(policy or IommuBackend.LEGACY_ONLY, device)


_DECODERS: Mapping[str, Callable[[_Fields], DeviceConfig]] = {
    GpuConfig.kind: _gpu,
    MigDeviceConfig.kind: _mig,
    VfioDeviceConfig.kind: _vfio,
}
_NO_TIME_SLICE = "; a MIG partition has no time-slice of its own: remove it"


def _sharing(fields: _Fields, *, time_slicing: bool) -> Sharing | None:
    sharing = fields.below("sharing")
    if sharing is None:
        return None
    strategy = sharing.read("strategy", lambda found: Strategy(_one_of(found, Strategy)), None)
    interval = _interval(sharing) if time_slicing else None
    mps = _mps(sharing)
    sharing.finish(None if time_slicing else {"timeSlicingConfig": _NO_TIME_SLICE})
    for name, given, needed in (
        ("timeSlicingConfig", interval, Strategy.TIME_SLICING),
        ("mpsConfig", mps, Strategy.MPS),
    ):
        if given is not None and strategy is not needed:
            sharing.note(
                name, f'has no effect unless sharing.strategy is "{needed}"; it is {strategy or "not set (or wrong)"}'
            )
    return Sharing(strategy, interval, mps)


def _interval(sharing: _Fields) -> Interval | None:
    slicing = sharing.below("timeSlicingConfig")
    if slicing is None:
        return None
    interval = slicing.read("interval", lambda found: Interval(_one_of(found, Interval)), Interval.DEFAULT)
    slicing.finish()
    return interval


def _mps(sharing: _Fields) -> MpsConfig | None:
    mps = sharing.below("mpsConfig")
    if mps is None:
        return None
    percentage = mps.read("defaultActiveThreadPercentage", _percentage, None)
    limit = mps.read("defaultPinnedDeviceMemoryLimit", _memory, None)
    limits: list[tuple[str, str]] = []
    none: tuple[tuple[str, Cursor], ...] = ()
    per_device = mps.read("defaultPerDevicePinnedMemoryLimit", lambda found: tuple(found.members()), none)
    for key, value in per_device:
        with _noted(mps.faults):
            if _GPU_KEY.match(key) is None:
                raise value.error("is keyed neither by an index (0, 1, ...), a UUID (GPU-..., MIG-...) nor *")
            limits.append((key, _memory(value)))
    multi_user = mps.read("multiUser", Cursor.boolean, False)
    mps.finish()
    return MpsConfig(percentage, limit, tuple(limits), multi_user)


def _percentage(cursor: Cursor) -> int:
    if not 0 <= cursor.integer() <= 100:
        raise cursor.error(f"must be from 0 to 100, is {shown(cursor.value)}")
    return cursor.integer()


def _memory(cursor: Cursor) -> str:
    """A quantity as written. MPS counts in MiB: less than one is no limit that it could keep."""
    text = str(cursor.value) if isinstance(cursor.value, int) and not isinstance(cursor.value, bool) else cursor.text()
    try:
        size = parse_bytes(text[:64])
    except ValueError as error:
        raise cursor.error(f"{error}, is {shown(text)}") from error
    if size < MIB:
        raise cursor.error(f"must be 1Mi or more, is {shown(text)}")
    return text


def _one_of(cursor: Cursor, choices: type[enum.StrEnum]) -> str:
    text = cursor.text()
    names = [choice.value for choice in choices]
    if text not in names:
        raise cursor.error(f"is {shown(text)}{suggestion(text, names)}")
    return text
