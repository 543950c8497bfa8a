"""Selectors as the rules look at them: whether they compile, what they read, and what they say of a device."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields, is_dataclass
from functools import lru_cache
from typing import Any, TypeAlias

from driver.analysis import quantity
from driver.analysis.cel import CelError, EvaluationError, Program, compile_selector, device_value
from driver.analysis.cel.parser import parse
from driver.analysis.cel.tree import Call, Literal, Node, Select

JSON: TypeAlias = dict[str, Any]
_PARTS = ("attributes", "capacity")


@dataclass(frozen=True, slots=True)
class Selector:
    """One CEL selector of a class or a request."""

    path: str
    """Below the document, such as ``spec.selectors[0].cel.expression``."""
    expression: str


def selectors(holder: JSON, path: str) -> tuple[Selector, ...]:
    """The selectors of a class's spec or of a request."""
    return tuple(
        Selector(f"{path}.selectors[{index}].cel.expression", entry["cel"]["expression"])
        for index, entry in enumerate(holder.get("selectors") or ())
        if entry.get("cel")
    )


def fault(expression: str, release: int) -> str | None:
    """Why it does not compile; None where it does."""
    try:
        compile_selector(expression, release)
    except CelError as error:
        return str(error)
    return None


@lru_cache(maxsize=2048)
def reads(expression: str) -> frozenset[str]:
    """The attributes and capacities that it names, as ``domain/id``; empty where it cannot be parsed."""
    try:
        return frozenset(_names(parse(expression)))
    except (CelError, RecursionError):  # RecursionError: a tree that is too deep to go through
        return frozenset()


def _names(node: Node) -> Iterator[str]:
    parts = _steps(node)
    if parts is not None and len(parts) == 4 and parts[0] == "device" and parts[1] in _PARTS:
        yield f"{parts[2]}/{parts[3]}"
    for entry in fields(node):
        yield from _below(getattr(node, entry.name))


def _below(value: Any) -> Iterator[str]:
    if isinstance(value, Node):
        yield from _names(value)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _below(item)


def _steps(node: Any) -> list[str] | None:
    """``device.attributes["d"].x`` as its four parts; None for any other expression."""
    if isinstance(node, Select):
        before = _steps(node.operand)
        return None if before is None else [*before, node.name]
    if isinstance(node, Call) and node.function in ("_[_]", "_[?_]") and isinstance(node.args[1], Literal):
        before = _steps(node.args[0])
        return None if before is None else [*before, str(node.args[1].value)]
    name = getattr(node, "name", None)
    return [name] if is_dataclass(node) and isinstance(name, str) and name == "device" else None


class Evaluator:
    """Runs selectors on devices as the scheduler of one release does; equal questions are answered once."""

    def __init__(self, release: int) -> None:
        self._release = release
        self._programs: dict[str, Program | None] = {}
        self._devices: dict[int, Any] = {}

    def failure(self, expressions: tuple[str, ...], driver: str, device: JSON) -> tuple[int, str] | None:
        """The selector that cannot be evaluated on the device, and why: (its number, message).

        Selectors come after each other: what stands behind one that does not match is not looked at. None where all
        can be evaluated, or one before says no. Selectors that do not compile are passed over.
        """
        value = self._devices.get(id(device))
        if value is None:
            value = self._devices[id(device)] = self._value(driver, device)
        if isinstance(value, str):
            return 0, value
        for index, expression in enumerate(expressions):
            program = self._program(expression)
            if program is None:
                continue
            try:
                if not program.matches(value):
                    return None
            except EvaluationError as error:
                return index, str(error)
        return None

    def _program(self, expression: str) -> Program | None:
        if expression not in self._programs:
            try:
                self._programs[expression] = compile_selector(expression, self._release)
            except CelError:
                self._programs[expression] = None
        return self._programs[expression]

    @staticmethod
    def _value(driver: str, device: JSON) -> Any:
        amounts = {name: quantity.read(entry["value"]) for name, entry in (device.get("capacity") or {}).items()}
        shareable = bool(device.get("allowMultipleAllocations"))
        try:
            return device_value(driver, device.get("attributes") or {}, amounts, shareable=shareable, lists=True)
        except EvaluationError as error:
            return str(error)
