"""From text to documents: YAML and JSON files, lists, folders, dumps of kubectl, cut ones too.

Nothing here stops at a fault: what cannot be read becomes a ``Problem`` that names the document and the path of the
field, and the rest is still there. Objects of resource.k8s.io come out in the form of v1 whatever version they had.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeAlias

from driver.analysis.document_fault import fault
from driver.analysis.document_text import Problem, Value, values
from driver.analysis.document_versions import GROUP, KINDS, VersionError, to_v1

JSON: TypeAlias = dict[str, Any]
Progress: TypeAlias = Callable[[str, int], None]
"""Told what is being done and how much of it is done; decides by itself whether anybody wants to hear."""

SUFFIXES: Final = (".json", ".yaml", ".yml")
_PROGRESS_EVERY: Final = 256


@dataclass(frozen=True, slots=True)
class Document:
    """One object and where it came from."""

    kind: str
    name: str
    """``namespace/name``, or the name alone; the generateName with a star where it has no name yet."""
    origin: str
    """A file, ``stdin`` or ``cluster``."""
    body: JSON
    """As decoded; resource.k8s.io in the form of v1."""
    index: str = ""
    """Where in the origin: ``document 2``, ``items[3]``; empty where it is the only one."""
    line: int = 1
    """Line of the file on which it begins; 1 where that is not known."""

    @property
    def label(self) -> str:
        """For people: ``ResourceSlice node-a-gpu (dump.json, items[3])``."""
        place = f"{self.origin}, {self.index}" if self.index else self.origin
        return f"{self.kind} {self.name} ({place})"


@dataclass(frozen=True, slots=True)
class Collection:
    """Documents by kind, in the order in which they were read."""

    documents: tuple[Document, ...] = ()
    problems: tuple[Problem, ...] = ()
    ignored: tuple[str, ...] = ()
    """Kinds that nobody here looks at."""
    damaged_pools: frozenset[tuple[str, str]] = frozenset()
    """(driver, pool) of slices that were left out: nothing can be said of what these pools lack."""
    absent: frozenset[str] = frozenset()
    """Kinds that could not be asked for (a cluster refused): that none is there means nothing."""
    _kinds: dict[str, tuple[Document, ...]] = field(default_factory=dict, compare=False, repr=False)

    def of(self, kind: str) -> tuple[Document, ...]:
        """Those of one kind."""
        if not self._kinds and self.documents:
            kinds: dict[str, list[Document]] = {}
            for document in self.documents:
                kinds.setdefault(document.kind, []).append(document)
            self._kinds.update({name: tuple(found) for name, found in kinds.items()})
        return self._kinds.get(kind, ())

    @property
    def slices(self) -> tuple[Document, ...]:
        """ResourceSlices."""
        return self.of("ResourceSlice")

    @property
    def classes(self) -> tuple[Document, ...]:
        """DeviceClasses."""
        return self.of("DeviceClass")

    @property
    def claims(self) -> tuple[Document, ...]:
        """ResourceClaims."""
        return self.of("ResourceClaim")

    @property
    def claim_templates(self) -> tuple[Document, ...]:
        """ResourceClaimTemplates."""
        return self.of("ResourceClaimTemplate")

    def __add__(self, other: Collection) -> Collection:
        """Both, the other's after one's own."""
        return Collection(
            self.documents + other.documents,
            self.problems + other.problems,
            tuple(dict.fromkeys(self.ignored + other.ignored)),
            self.damaged_pools | other.damaged_pools,
            self.absent | other.absent,
        )


def quiet(_what: str, _done: int) -> None:
    """A progress that nobody hears."""


def load(paths: Iterable[Path], *, progress: Progress = quiet) -> Collection:
    """Read files and folders (those with a name in .json, .yaml or .yml, and what is below them, in order of names).

    A file that cannot be read, or is not UTF-8, is a problem of the collection.
    """
    result = Collection()
    for path in _files(paths):
        if isinstance(path, Problem):
            result += Collection(problems=(path,))
            continue
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
            result += Collection(problems=(Problem(str(path), "", f"cannot be read: {reason}", str(path)),))
            continue
        result += read_text(text, str(path), progress=progress)
    return result


def _files(paths: Iterable[Path]) -> Iterator[Path | Problem]:
    for path in paths:
        if not path.is_dir():
            yield path
            continue
        found = sorted(entry for entry in path.rglob("*") if entry.suffix in SUFFIXES and entry.is_file())
        if not found:
            yield Problem(str(path), "", f"holds no file with a name in {', '.join(SUFFIXES)}", str(path))
        yield from found


def read_text(text: str, origin: str, *, progress: Progress = quiet) -> Collection:
    """Read a text that holds JSON (one value, or several) or YAML (one document, or several)."""
    problems: list[Problem] = []
    result = collect(list(values(text, origin, problems)), origin, progress=progress)
    return Collection(
        result.documents,
        (*result.problems, *problems),
        result.ignored,
        result.damaged_pools,
    )


def collect(found: Iterable[Value], origin: str, *, progress: Progress = quiet) -> Collection:
    """Sort decoded values by kind; lists of any kind are opened."""
    documents: list[Document] = []
    problems: list[Problem] = []
    ignored: dict[str, None] = {}
    damaged: set[tuple[str, str]] = set()
    for number, value in enumerate(_opened(found)):
        if number % _PROGRESS_EVERY == 0:
            progress(f"reading {origin}", number)
        result = _document(value, origin)
        if isinstance(result, Problem):
            problems.append(result)
            damaged |= _pool_of(value.value)
        elif isinstance(result, Document):
            documents.append(result)
        elif result:
            ignored[result] = None
    return Collection(tuple(documents), tuple(problems), tuple(ignored), frozenset(damaged))


def _opened(found: Iterable[Value]) -> Iterator[Value]:
    for value in found:
        body = value.value
        items = body if isinstance(body, list) else None
        # Of a list that is cut off the kind may be lost: kubectl writes it behind the items.
        if isinstance(body, dict) and isinstance(body.get("items"), list) and _is_list(body.get("kind", "List")):
            items = _typed_items(body)
        if items is None:
            yield value
            continue
        prefix = f"{value.index}, " if value.index else ""
        for number, item in enumerate(items):
            yield Value(item, f"{prefix}items[{number}]", value.line)


def _is_list(kind: Any) -> bool:
    return isinstance(kind, str) and kind.endswith("List")


def _typed_items(body: JSON) -> list[Any]:
    """Items of a typed list (ResourceSliceList), which the API server sends without kind and version, get them."""
    kind, version = str(body.get("kind", "List")).removesuffix("List"), body.get("apiVersion")
    if not kind:
        return list(body["items"])
    return [{"apiVersion": version, "kind": kind, **item} if isinstance(item, dict) else item for item in body["items"]]


def _document(value: Value, origin: str) -> Document | Problem | str:
    """The document, what is wrong with it, or the kind that nobody looks at (empty for an empty document)."""
    body = value.value
    place = f"{origin}, {value.index}" if value.index else origin
    if body is None:
        return ""
    if not isinstance(body, dict):
        return Problem(place, "", f"is no object but {_type_name(body)}", origin, value.line)
    kind, api_version = body.get("kind"), body.get("apiVersion")
    for name, given in (("kind", kind), ("apiVersion", api_version)):
        if not isinstance(given, str) or not given:
            return Problem(place, name, "is missing: every Kubernetes object says what it is", origin, value.line)
    assert isinstance(kind, str)
    assert isinstance(api_version, str)
    label = f"{kind} {_name(body)} ({place})"
    group, _, version = api_version.rpartition("/")
    if group == GROUP and kind in KINDS:
        try:
            body = to_v1(kind, version, body)
        except VersionError as error:
            return Problem(label, "apiVersion", str(error), origin, value.line)
    elif kind in KINDS or group == GROUP or not _known(kind, group):
        return f"{api_version} {kind}"
    wrong = fault(kind, body)
    if wrong is not None:
        return Problem(label, wrong[0], wrong[1], origin, value.line)
    return Document(kind, _name(body), origin, body, value.index, value.line)


_GROUPS: Final = {
    "Node": "",
    "Pod": "",
    "ConfigMap": "",
    "DaemonSet": "apps",
    "Deployment": "apps",
    "StatefulSet": "apps",
    "ReplicaSet": "apps",
    "Job": "batch",
    "PodGroup": "scheduling.k8s.io",
    "CompositePodGroup": "scheduling.k8s.io",
    "Workload": "scheduling.k8s.io",
    "ProvisioningRequest": "autoscaling.x-k8s.io",
    "NodeShape": "gpudra.dev",
}


def _known(kind: str, group: str) -> bool:
    return _GROUPS.get(kind) == group


def _name(body: JSON) -> str:
    metadata = body.get("metadata")
    if not isinstance(metadata, dict):
        return "without a name"
    name = metadata.get("name") or (f"{metadata['generateName']}*" if metadata.get("generateName") else None)
    namespace = metadata.get("namespace")
    return "without a name" if not name else f"{namespace}/{name}" if namespace else str(name)


def _pool_of(body: Any) -> set[tuple[str, str]]:
    if not isinstance(body, dict) or body.get("kind") != "ResourceSlice" or not isinstance(body.get("spec"), dict):
        return set()
    pool = body["spec"].get("pool")
    return {(str(body["spec"].get("driver")), str(pool.get("name")))} if isinstance(pool, dict) else set()


def _type_name(value: Any) -> str:
    return {str: "text", int: "a number", float: "a number", bool: "true or false", list: "a list"}.get(
        type(value), "nothing"
    )
