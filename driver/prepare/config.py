"""The opaque configuration ``resource.nvidia.com/v1beta1``: what users may write into claims and classes.

Kinds and fields are those of NVIDIA's DRA driver, so that nobody has to change a claim. Users' input is decoded
strictly: what would be ignored silently is an error that names the field and the remedy. Stored data of our own is
decoded leniently, so that a file of a later version can still be read.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Callable, Mapping
from typing import TypeAlias

import msgspec

from driver.prepare import strictjson
from driver.prepare.document import Cursor, DocumentError, shown, suggestion

API_VERSION = "resource.nvidia.com/v1beta1"
MAX_PARAMETERS_BYTES = 10 * 1024
"""The API server's own limit for opaque parameters."""

_ELSEWHERE = {
    "ComputeDomainChannelConfig": "compute-domain.nvidia.com",
    "ComputeDomainDaemonConfig": "compute-domain.nvidia.com",
}
_QUANTITY = re.compile(r"\A\d{1,18}(?:\.\d{1,9})?(?:[KMGTPE]i|[kMGTPE]|e\d{1,2})?\Z", re.ASCII)
_GPU_KEY = re.compile(r"\A(?:\d{1,3}|(?:GPU|MIG)-[0-9a-fA-F-]{1,64})\Z", re.ASCII)


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
    """Limits for CUDA MPS. Memory limits are Kubernetes quantities as written."""

    default_active_thread_percentage: int | None = None
    default_pinned_device_memory_limit: str | None = None
    default_per_device_pinned_memory_limit: tuple[tuple[str, str], ...] = ()
    """(index or UUID, quantity)."""
    multi_user: bool = False


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
        DocumentError: names the field and what to write instead.
    """
    fields = _Fields(Cursor(value, path), strict)
    api_version = fields.get("apiVersion").text()
    if api_version != API_VERSION:
        raise fields.cursor.get("apiVersion").error(f'is {shown(api_version)}, this driver reads "{API_VERSION}"')
    kind = fields.get("kind").text()
    decoder = _DECODERS.get(kind)
    if decoder is None:
        problem = f"is {shown(kind)}, which is no configuration of this driver"
        if kind in _ELSEWHERE:
            raise fields.cursor.get("kind").error(f'{problem}; give it to the driver "{_ELSEWHERE[kind]}"')
        raise fields.cursor.get("kind").error(problem + suggestion(kind, _DECODERS))
    return decoder(fields)


class _Fields:
    """The members of one object, of which each must be known; ``finish`` complains about the others."""

    def __init__(self, cursor: Cursor, strict: bool) -> None:
        self.cursor = cursor
        self.strict = strict
        self._known: set[str] = set()
        cursor.as_object()

    def find(self, name: str) -> Cursor | None:
        self._known.add(name)
        return self.cursor.find(name)

    def get(self, name: str) -> Cursor:
        self._known.add(name)
        return self.cursor.get(name)

    def below(self, name: str) -> _Fields | None:
        found = self.find(name)
        return None if found is None else _Fields(found, self.strict)

    def finish(self) -> None:
        if not self.strict:
            return
        for name in self.cursor.as_object():
            if name not in self._known:
                where = f"{self.cursor.path}.{name[:64]}"
                raise DocumentError(where, f"is no field of this kind{suggestion(name, self._known)}")


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
    policy = iommu.find("backendPolicy")
    device = iommu.find("enableAPIDevice")
    iommu.finish()
    return VfioDeviceConfig(
        IommuBackend(_one_of(policy, IommuBackend)) if policy else IommuBackend.LEGACY_ONLY,
        device.boolean() if device else False,
    )


_DECODERS: Mapping[str, Callable[[_Fields], DeviceConfig]] = {
    GpuConfig.kind: _gpu,
    MigDeviceConfig.kind: _mig,
    VfioDeviceConfig.kind: _vfio,
}


def _sharing(fields: _Fields, *, time_slicing: bool) -> Sharing | None:
    sharing = fields.below("sharing")
    if sharing is None:
        return None
    found = sharing.find("strategy")
    strategy = Strategy(_one_of(found, Strategy)) if found else None
    interval = _interval(sharing) if time_slicing else None
    mps = _mps(sharing)
    sharing.finish()
    for name, given, needed in (
        ("timeSlicingConfig", interval, Strategy.TIME_SLICING),
        ("mpsConfig", mps, Strategy.MPS),
    ):
        if given is not None and strategy is not needed:
            raise DocumentError(
                f"{sharing.cursor.path}.{name}",
                f'has no effect unless sharing.strategy is "{needed}"; it is {strategy or "not set"}',
            )
    return Sharing(strategy, interval, mps)


def _interval(sharing: _Fields) -> Interval | None:
    slicing = sharing.below("timeSlicingConfig")
    if slicing is None:
        return None
    interval = slicing.find("interval")
    slicing.finish()
    return Interval(_one_of(interval, Interval)) if interval else Interval.DEFAULT


def _mps(sharing: _Fields) -> MpsConfig | None:
    mps = sharing.below("mpsConfig")
    if mps is None:
        return None
    percentage = mps.find("defaultActiveThreadPercentage")
    if percentage is not None and not 0 <= percentage.integer() <= 100:
        raise percentage.error(f"must be from 0 to 100, is {shown(percentage.value)}")
    limit = mps.find("defaultPinnedDeviceMemoryLimit")
    per_device = mps.find("defaultPerDevicePinnedMemoryLimit")
    multi_user = mps.find("multiUser")
    mps.finish()
    limits: list[tuple[str, str]] = []
    for key, value in per_device.members() if per_device else ():
        if _GPU_KEY.match(key) is None:
            raise value.error("is keyed neither by an index (0, 1, ...) nor by a UUID (GPU-..., MIG-...)")
        limits.append((key, _quantity(value)))
    return MpsConfig(
        percentage.integer() if percentage else None,
        _quantity(limit) if limit else None,
        tuple(limits),
        multi_user.boolean() if multi_user else False,
    )


def _quantity(cursor: Cursor) -> str:
    text = str(cursor.value) if isinstance(cursor.value, int) and not isinstance(cursor.value, bool) else cursor.text()
    if _QUANTITY.match(text) is None:
        raise cursor.error(f'must be a quantity such as "1Gi", is {shown(text)}')
    return text


def _one_of(cursor: Cursor, choices: type[enum.StrEnum]) -> str:
    text = cursor.text()
    names = [choice.value for choice in choices]
    if text not in names:
        raise cursor.error(f"is {shown(text)}{suggestion(text, names)}")
    return text
