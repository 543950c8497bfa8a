"""The table of targets is complete: every public parser is in it, or is listed here with the reason why not."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from tests.fuzz.fuzztable import TARGETS

REPOSITORY = Path(__file__).parents[2]
PARSERS = re.compile(r"\A(parse|parses|loads?|reads?|decode|canonical|from)(_\w+)?\Z")
"""The names that readers of text, bytes, files and documents have in this project."""
NOT_FROM_OUTSIDE = {
    "driver.analysis.cel.times:from_seconds": "takes a number",
    "driver.analysis.cel.types:read": "reads the tables of this project",
    "driver.cli.cluster:read_cluster": "asks a server; its documents go through driver.analysis.documents",
    "driver.cli.documents:read_documents": "options; the text goes through driver.analysis.documents",
    "driver.cli.node:read_node": "options; the node is read by driver.node",
    "driver.node:NodeReader.read": "joins native.sysfs, which is a target, and NVML, whose values are",
    "driver.prepare.sharing.modes:GpuModes.read": "asks native.smi, whose reading of nvidia-smi's words is a target",
    "kubeletplugin.client:KubeClient.from_kubeconfig": "opens what kubeletplugin.kubeconfig, a target, has read",
    "kubeletplugin.client:KubeClient.from_pod": "opens what kubeletplugin.credentials, a target, has read",
    "kubeletplugin.publicfiles:read_file": "gives bytes; kubeletplugin.metadata, a target, reads them",
}
PACKAGES = ("driver", "kubeletplugin", "native")
LEFT_OUT = ("testing", "proto", "csrc")


def functions(tree: ast.Module) -> Iterator[str]:
    """Public functions, and public methods of public classes."""
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and not node.name.startswith("_"):
            yield node.name
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            for inner in node.body:
                if isinstance(inner, ast.FunctionDef) and not inner.name.startswith("_"):
                    yield f"{node.name}.{inner.name}"


def parsers() -> set[str]:
    """``module:name`` of whatever reads, by its name."""
    found = set()
    for package in PACKAGES:
        for path in (REPOSITORY / package).rglob("*.py"):
            parts = path.relative_to(REPOSITORY).with_suffix("").parts
            if set(parts) & set(LEFT_OUT) or (parts[-1].startswith("_") and parts[-1] != "__init__"):
                continue
            module = ".".join(part for part in parts if part != "__init__")
            names = functions(ast.parse(path.read_text(encoding="utf-8")))
            found |= {f"{module}:{name}" for name in names if PARSERS.match(name.rpartition(".")[2])}
    return found


def covered() -> set[str]:
    return {name for target in TARGETS for name in target.covers}


def test_every_parser_is_a_target_or_has_a_reason_not_to_be() -> None:
    missing = parsers() - covered() - NOT_FROM_OUTSIDE.keys()
    assert not missing, "add a target to tests/fuzz, or say here why none is needed"


def test_the_table_names_no_parser_that_is_not_there() -> None:
    names = {
        f"{name.partition(':')[0]}:{found}"
        for name in covered()
        for found in functions(ast.parse(_source(name.partition(":")[0])))
    }
    assert covered() <= names


def _source(module: str) -> str:
    path = REPOSITORY.joinpath(*module.split("."))
    return (path / "__init__.py" if path.is_dir() else path.with_suffix(".py")).read_text(encoding="utf-8")


def test_targets_have_names_of_their_own() -> None:
    names = [target.name for target in TARGETS]
    assert len(set(names)) == len(names)


def test_no_reason_is_given_for_what_is_not_there() -> None:
    assert NOT_FROM_OUTSIDE.keys() <= parsers()
