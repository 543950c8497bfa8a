"""``gpudra validate``: what is wrong with claims, claim templates and device classes, before anybody applies them."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

_DESCRIPTION = """\
Check the opaque configuration in ResourceClaims, ResourceClaimTemplates and DeviceClasses as the driver will read it,
without a cluster: unknown fields, wrong values, limits that cannot be kept, configurations that fit no request. Every
fault is told, with file, document and field; other objects in the files are passed over.

The same checks run when a claim is prepared. There a mistake costs a pod that does not start.

Exit code 0: no fault; 1: faults; 2: a file cannot be read.
"""

_EXAMPLES = """\
examples:
  gpudra validate claim.yaml class.yaml
  helm template ./app | gpudra validate -            several documents from standard input
  gpudra validate -o json manifests/*.yaml           for CI
"""

MAX_BYTES = 16 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Finding:
    """One fault and where it is."""

    file: str
    document: int
    """Counted from 1; 0 where the file as a whole is meant."""
    object: str
    """``ResourceClaim team-a/train``, or empty."""
    path: str
    problem: str

    def __str__(self) -> str:
        where = f"{self.file}: document {self.document}" if self.document else self.file
        named = f" ({self.object})" if self.object else ""
        return f"{where}{named}: {self.path + ': ' if self.path else ''}{self.problem}"


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of all files."""

    checked: int
    """Claims, templates and classes that were looked into."""
    findings: tuple[Finding, ...]


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Describe the verb."""
    parser = subparsers.add_parser(
        "validate",
        help="check claims, templates and classes before they are applied",
        description=_DESCRIPTION,
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("files", nargs="+", metavar="FILE", help="YAML or JSON, several documents; - is standard input")
    parser.add_argument("-o", "--output", choices=("text", "json"), default="text", help="default: text")
    parser.add_argument("--driver-name", default="gpu.nvidia.com", metavar="NAME", help="name of the DRA driver")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print what is wrong; 1 where something is."""
    outcome = check_files(args.files, args.driver_name)
    if args.output == "json":
        faults = [asdict(finding) for finding in outcome.findings]
        print(json.dumps({"checked": outcome.checked, "faults": faults}, indent=2, ensure_ascii=False))
    else:
        for finding in outcome.findings:
            print(finding)
        print(f"{outcome.checked} checked, {len(outcome.findings)} fault(s)", file=sys.stderr)
    return 1 if outcome.findings else 0


def check_files(files: Sequence[str], driver_name: str) -> Outcome:
    """Check all documents of all files.

    Raises:
        UsageError: a file cannot be read.
    """
    checked = 0
    findings: list[Finding] = []
    for file in files:
        shown = "standard input" if file == "-" else file
        try:
            documents = list(_documents(_read(file)))
        except ValueError as error:
            findings.append(Finding(shown, 0, "", "", str(error)))
            continue
        for index, document in enumerate(documents, 1):
            count, found = _check(document, driver_name)
            checked += count
            findings += [Finding(shown, index, name, path, problem) for name, path, problem in found]
    return Outcome(checked, tuple(findings))


def _check(document: object, driver_name: str) -> tuple[int, list[tuple[str, str, str]]]:
    """(objects looked into, (object, path, problem) of each fault); a List is looked into item by item."""
    from driver.prepare.manifests import check_manifest, is_checked

    items = document.get("items") if isinstance(document, Mapping) else None
    if isinstance(document, Mapping) and str(document.get("kind", "")).endswith("List") and isinstance(items, list):
        parts = [(f"items[{index}].", item) for index, item in enumerate(items)]
    else:
        parts = [("", document)]
    found = [
        (_name(item), prefix + fault.path, fault.problem)
        for prefix, item in parts
        for fault in check_manifest(item, driver_name)
    ]
    return sum(is_checked(item) for _, item in parts), found


def _name(document: Any) -> str:
    metadata = document.get("metadata")
    names = [metadata.get(key) for key in ("namespace", "name")] if isinstance(metadata, Mapping) else []
    return f"{document.get('kind')} {'/'.join(str(name) for name in names if name) or '(no name)'}"


def _read(file: str) -> str:
    from driver.cli.main import UsageError

    try:
        data = sys.stdin.buffer.read(MAX_BYTES + 1) if file == "-" else _head(Path(file))
    except OSError as error:
        raise UsageError(f"{file} cannot be read: {error.strerror}") from error
    if len(data) > MAX_BYTES:
        raise UsageError(f"{file} is larger than {MAX_BYTES} bytes: no manifest is")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"is not UTF-8 (byte {error.start})") from error


def _head(path: Path) -> bytes:
    with path.open("rb") as stream:
        return stream.read(MAX_BYTES + 1)


def _documents(text: str) -> Iterator[object]:
    """The documents of a file; a key that is there twice is a fault, whichever of both a parser would take.

    Raises:
        ValueError: neither YAML nor JSON; the message says where.
    """
    from driver.prepare import strictjson

    if text.lstrip()[:1] in ("{", "["):
        try:
            yield strictjson.loads(text, max_bytes=MAX_BYTES, max_depth=64)
        except strictjson.StrictJSONError as error:
            json_problem = str(error)
        else:
            return
        yield from _yaml(text, json_problem)
    else:
        yield from _yaml(text, None)


def _yaml(text: str, json_problem: str | None) -> Iterator[object]:
    """``json_problem``: what was wrong with the text as JSON, where it looked like that."""
    try:
        import yaml
    except ImportError as error:
        if json_problem is not None:
            raise ValueError(json_problem) from error
        from driver.cli.main import UsageError

        raise UsageError("PyYAML is not installed: install gpudra[cli], or give JSON") from error
    from driver.cli.strictyaml import StrictLoader

    try:
        for document in yaml.load_all(text, StrictLoader):
            if document is not None:
                yield document
    except (yaml.YAMLError, RecursionError) as error:
        problem = " ".join(str(error).split()) or "is nested too deeply"
        raise ValueError(json_problem or f"is no YAML: {problem}") from error
