"""Compiled selectors and derived attributes, and the device as they see it."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Final

from ..quantity import Quantity
from .checker import Checker
from .environment import COST_LIMIT, Environment, environment
from .errors import CompileError, EvaluationError, UnsupportedError
from .frame import Frame, Step
from .parser import parse
from .planner import Planner
from .types import Type
from .values import DomainMap, semver, type_name

_SCALARS: Final = ("int", "bool", "string", "version")
_PLAIN: Final = frozenset(("int", "bool", "string"))
_LISTS: Final = ("ints", "bools", "strings", "versions")
_DERIVED: Final = frozenset(("bool", "int", "string", "any", "dyn", "kubernetes.Semver"))

Value = dict[str, object]


class Program:
    """One expression, ready to run on devices. Thread-safe: a run has a frame of its own."""

    __slots__ = ("_step", "expression")

    def __init__(self, expression: str, step: Step) -> None:
        self.expression = expression
        self._step = step

    def run(self, device: Value, limit: int = COST_LIMIT) -> tuple[object, int]:
        """The value and its cost.

        Raises:
            EvaluationError: a missing key, a function that does not exist for the values, or too high a cost.
        """
        frame = Frame(device, limit)
        try:
            value = self._step(frame)
        except RecursionError as error:
            raise EvaluationError("the expression is nested too deeply") from error
        frame.spend(0)
        return value, frame.cost

    def matches(self, device: Value) -> bool:
        """Whether the device is selected.

        Raises:
            EvaluationError: see ``run``; also where the value is no boolean.
        """
        value, _ = self.run(device)
        if not isinstance(value, bool):
            raise EvaluationError(f"type conversion error from '{type_name(value)}' to 'bool'")
        return value


def compile_selector(expression: str, release: int, lists: bool = False) -> Program:
    """A device selector as the scheduler of 1.<release> compiles it, with or without DRAListTypeAttributes.

    Raises:
        CompileError: the expression is not valid; the text begins with line and column.
        UnsupportedError: it is valid, but beyond this evaluator.
    """
    found = _selector(expression, release, lists)
    if isinstance(found, CompileError):
        raise found.with_traceback(None)
    return found


@lru_cache(maxsize=2048)
def _selector(expression: str, release: int, lists: bool) -> Program | CompileError:
    """The program or what is wrong: a wrong selector is asked for on every node too."""
    where = environment(release, lists)
    try:
        step, type_ = _compile(expression, where)
    except CompileError as error:
        return error
    if type_.name not in ("bool", "any", where.attribute.name):
        return CompileError(f"must evaluate to bool or the unknown type, not {type_}", expression)
    return Program(expression, step)


@lru_cache(maxsize=512)
def compile_derived(expression: str, release: int) -> Program:
    """A derived attribute: like a selector, but its value is the attribute.

    Raises:
        CompileError, UnsupportedError: as ``compile_selector``.
    """
    step, type_ = _compile(expression, environment(release))
    element = type_.of[0] if type_.name == "list" else type_
    if element.name not in _DERIVED:
        raise CompileError(
            "must evaluate to a primitive scalar (string, integer, boolean, semver) or a list of these scalars, "
            f"not {type_}",
            expression,
        )
    return Program(expression, step)


def _compile(expression: str, where: Environment) -> tuple[Step, Type]:
    try:
        tree = parse(expression, quoted=where.release >= 37)
        checker = Checker(expression, where)
        type_ = checker.check(tree)
        return Planner(checker).plan(tree), type_
    except RecursionError as error:
        raise UnsupportedError(
            "the expression is nested more deeply than this evaluator can follow", expression
        ) from error


def device_value(
    driver: str,
    attributes: Mapping[str, Mapping[str, object]],
    capacity: Mapping[str, Quantity],
    *,
    shareable: bool,
    lists: bool,
) -> Value:
    """The variable ``device``: attributes and capacities by domain, the driver's own where a name has none.

    Raises:
        EvaluationError: an attribute without a value that this release knows; upstream aborts scheduling on it.
    """
    by_domain = DomainMap()
    for name, attribute in attributes.items():
        domain, slash, local = name.partition("/")
        inner = by_domain.setdefault(domain if slash else driver, {})
        assert isinstance(inner, dict)
        inner[local if slash else domain] = attribute_value(name, attribute, lists=lists)
    amounts = DomainMap()
    for name, amount in capacity.items():
        domain, slash, local = name.partition("/")
        inner = amounts.setdefault(domain if slash else driver, {})
        assert isinstance(inner, dict)
        inner[local if slash else domain] = amount
    return {"driver": driver, "allowMultipleAllocations": shareable, "attributes": by_domain, "capacity": amounts}


def attribute_value(name: str, attribute: Mapping[str, object], *, lists: bool) -> object:
    """The value of one attribute document (``{"string": "H200"}``).

    Raises:
        EvaluationError: no value of a known type, or a version that is none.
    """
    if len(attribute) == 1:
        ((kind, value),) = attribute.items()
        if kind in _PLAIN and value is not None:
            return value
    for kind in _LISTS if lists else ():
        values = attribute.get(kind)
        if isinstance(values, list):
            return [_version(name, each) for each in values] if kind == "versions" else values
    for kind in _SCALARS:
        value = attribute.get(kind)
        if value is not None:
            return _version(name, value) if kind == "version" else value
    raise EvaluationError(f"attribute {name}: unsupported attribute value")


def _version(name: str, text: object) -> object:
    try:
        return semver(str(text))
    except EvaluationError as error:
        raise EvaluationError(f"attribute {name}: parse semantic version: {error}") from error
