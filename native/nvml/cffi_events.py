"""Events through the compiled extension: the wait is a loop in C over short waits that looks at a flag in between."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from native.nvml import values
from native.nvml.cffi_library import CffiLibrary, ffi, lib, raw
from native.nvml.errors import NvmlReturn
from native.nvml.eventtypes import NvmlEvent, nvml_event
from native.nvml.protocol import WAIT_STEP
from native.nvml.values import PciInfo
from native.pci import canonical_address


class CffiEvents(CffiLibrary):
    """The part of the ``Nvml`` Protocol that is about events."""

    def __init__(self, library_path: str | Path) -> None:
        super().__init__(library_path)
        self._stop: Any = ffi.new("door_stop *")
        self._registered: dict[int, str] = {}
        self._set_open = False

    def open_events(self) -> None:
        """See the Protocol."""
        self.close_events()
        code = lib.door_events_open(self._opened("nvmlEventSetCreate"))
        if code != NvmlReturn.SUCCESS:
            raise values.failure("nvmlEventSetCreate", code, library=self._path)
        self._set_open = True

    def register_events(self, address: str, mask: int) -> int:
        """See the Protocol."""
        door = self._with_set("nvmlDeviceRegisterEvents")
        registered, device = ffi.new("unsigned long long *"), ffi.new("unsigned long long *")
        self._check(lib.door_events_register(door, self._one(address), 0, mask, registered, device), address)
        self._registered[int(device[0])] = canonical_address(address)
        return int(registered[0])

    def wait_event(self, seconds: float) -> NvmlEvent | None:
        """See the Protocol."""
        door, event = self._with_set("nvmlEventSetWait_v2"), ffi.new("door_event *")
        step = int(WAIT_STEP * 1000)
        code = lib.door_events_wait(door, int(seconds * 1000), step, self._stop, event)
        if code == NvmlReturn.TIMEOUT:
            return None
        if code != NvmlReturn.SUCCESS:
            raise values.failure("nvmlEventSetWait_v2", code, library=self._path)
        pci = event.pci
        info = PciInfo(raw(pci.bus_id), pci.domain, pci.bus, pci.device, pci.device_id, pci.subsystem_id)
        address = values.pci_address(info) if event.pci_code == NvmlReturn.SUCCESS else None
        address = address or self._registered.get(int(event.device))
        return nvml_event(address, event.type, event.data, event.gpu_instance, event.compute_instance)

    def stop_waiting(self) -> None:
        """See the Protocol."""
        lib.door_stop_now(self._stop)

    def close_events(self) -> None:
        """See the Protocol."""
        self._registered.clear()
        if self._set_open:
            self._set_open = False
            lib.door_events_close(self._door)

    def close(self) -> None:
        """Shut down and unload; safe to repeat."""
        self.close_events()
        super().close()

    def _with_set(self, call: str) -> Any:
        door = self._opened(call)
        if not self._set_open:
            raise values.not_open(call)
        return door
