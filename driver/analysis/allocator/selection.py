"""Which devices a request may have: the selectors of its class and its own, binding conditions, per-device nodes."""

from __future__ import annotations

from collections.abc import Mapping

from ..cel import (
    CompileError,
    EvaluationError,
    Program,
    UnsupportedError,
    compile_derived,
    compile_selector,
)
from ..cel.values import Semver, type_name
from .claims import Claim, DeviceClass, Request
from .features import Rules
from .model import Device
from .nodes import Node, node_matches

RequestKey = tuple[int, int, int]
"""Claim, request and alternative by number."""


class SelectionError(Exception):
    """A selector that does not compile or fails on a device: the scheduler gives up for all nodes."""


class UnknownError(Exception):
    """A selector that upstream may know and this port does not: there is no answer."""


class Selection:
    """The selectors of one attempt. What a selector says of a device is kept with the device."""

    def __init__(self, rules: Rules, claims: list[Claim], classes: Mapping[str, DeviceClass]) -> None:
        self._rules, self._claims, self._classes = rules, claims, classes
        self._lists = rules.selectors_see_lists
        self._shown = self._lists or rules.release >= 37
        self._known: dict[tuple[RequestKey, tuple[str, str, str]], bool] = {}

    def forget(self) -> None:
        """Drop what was found out while the claims were checked, as upstream does."""
        self._known.clear()

    def selectable(self, key: RequestKey, request: Request, device: Device, where: Node) -> bool:
        """Whether the device may be had for the request on this node.

        Raises:
            SelectionError: a selector fails.
            UnknownError: a selector is beyond this port.
            SelectorError: the device's node selector is not valid.
        """
        if device.binding and not self._rules.binding:
            return False
        known = self._known.get((key, device.id))
        if known is None:
            known = self._selected(key, request, device) and self.there(device, where)
            self._known[key, device.id] = known
        return known

    def _selected(self, key: RequestKey, request: Request, device: Device) -> bool:
        class_ = self._classes[request.class_name]
        for number, expression in enumerate(class_.selectors):
            if not self.matches(expression or "", device, f"class {class_.name}: selector #{number}"):
                return False
        for number, expression in enumerate(request.selectors):
            if not self.matches(expression or "", device, f"claim {self._claims[key[0]].key}: selector #{number}"):
                return False
        return True

    def there(self, device: Device, where: Node) -> bool:
        """Whether a device that chooses its own nodes is there for this one.

        Raises:
            SelectorError: the device's node selector is not valid.
        """
        if not device.slice.per_device:
            return True
        return node_matches(where, device.node_name, device.all_nodes, device.node_selector)

    def matches(self, expression: str, device: Device, label: str) -> bool:
        """What one selector says of one device.

        Raises:
            SelectionError, UnknownError: as ``selectable``.
        """
        known = device.matches.get(expression)
        if known is not None:
            return known
        program = self._program(expression, label)
        try:
            found = program.matches(self._value(device))
        except UnsupportedError as error:
            raise UnknownError(f"{label}: {error}") from error
        except EvaluationError as error:
            place = f" on device {'/'.join(device.id)}" if self._rules.release >= 37 else ""
            raise SelectionError(f"{label}{place}: CEL runtime error: {error}") from error
        device.matches[expression] = found
        return found

    def _value(self, device: Device) -> dict[str, object]:
        return device.value(lists=self._shown, sharing=self._rules.selectors_see_sharing)

    def _program(self, expression: str, label: str) -> Program:
        try:
            return compile_selector(expression, self._rules.release, self._lists)
        except UnsupportedError as error:
            raise UnknownError(f"{label}: {error}") from error
        except CompileError as error:
            raise SelectionError(f"{label}: CEL compile error: {error}") from error

    def derived(self, expression: str, name: str, device: Device) -> dict[str, object]:
        """A derived attribute of a device, as an attribute document.

        Raises:
            SelectionError: it does not compile, or fails on the device.
            UnknownError: it is beyond this port.
        """
        try:
            program = compile_derived(expression, self._rules.release)
        except UnsupportedError as error:
            raise UnknownError(f"derived attribute {name}: {error}") from error
        except CompileError as error:
            raise SelectionError(f"compile derived attribute {name} failed: {error}") from error
        try:
            return _attribute(program.run(self._value(device))[0])
        except EvaluationError as error:
            place = "/".join(device.id)
            raise SelectionError(f"evaluate derived attribute {name} on device {place} failed: {error}") from error


def _attribute(value: object) -> dict[str, object]:
    scalar = _scalar(value)
    if scalar:
        return {scalar[0]: scalar[1]}
    if not isinstance(value, (list, tuple)):
        raise EvaluationError(f"unsupported CEL return type: {type_name(value)}")
    if not value:
        return {"strings": []}
    parts = [_scalar(each) for each in value]
    kinds = {part[0] if part else "" for part in parts}
    if len(kinds) != 1 or "" in kinds:
        raise EvaluationError("expected list elements of one type")
    return {f"{kinds.pop()}s": [part[1] for part in parts if part]}


def _scalar(value: object) -> tuple[str, object] | None:
    if isinstance(value, bool):
        return "bool", value
    if type(value) is int:
        return "int", value
    if isinstance(value, str):
        return "string", value
    return ("version", str(value)) if isinstance(value, Semver) else None
