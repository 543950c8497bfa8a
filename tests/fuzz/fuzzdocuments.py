"""Targets: documents and expressions that tools are given: slices, claims, shapes, CEL, quantities."""

from __future__ import annotations

import json
from pathlib import Path

from driver.analysis import documents, quantity
from driver.analysis.cel import CelError, compile_selector, regex
from driver.analysis.cel.parser import parse
from driver.analysis.cel.urls import parse as parse_url
from driver.analysis.cel.values import semver, tolerant_semver
from driver.analysis.lint import Options, as_json, lint
from driver.analysis.lint import text as lint_text
from driver.analysis.lint.expressions import reads
from driver.analysis.shape.export import API_VERSION, KIND, ShapeError
from driver.analysis.shape.export import read as read_shape
from driver.analysis.shape.kinds import AttributeKinds
from driver.cli.documents import validators
from tests.fuzz.engine import Target
from tests.fuzz.fuzztools import as_json as value_of
from tests.fuzz.fuzztools import as_text, written
from tests.support import dradocs as dra

_GPU = dra.device("gpu-0", {"type": "gpu", "n": 1}, capacity={"memory": {"value": "80Gi"}}, taints=[dra.taint()])
_DOCUMENTS = [
    dra.node("node-a"),
    dra.resource_slice(_GPU),
    dra.device_class("gpu.nvidia.com", "device.attributes['gpu.nvidia.com'].type == 'gpu'"),
    dra.claim("c", dra.request(count=2), constraints=[{"matchAttribute": "a/b"}], results=[("gpu-0", "x")], owner="u"),
    dra.claim_template("t", dra.request(adminAccess=True)),
    dra.pod("train", claims=[("gpus", "c")], node="node-a"),
]
_EXPRESSIONS = (
    b"device.attributes['a.b'].type == 'gpu' && device.capacity['a.b'].memory.compareTo(quantity('40Gi')) >= 0",
    b"device.attributes['gpu.nvidia.com'].?profile.orValue('x').matches('^[a-z]+$')",
    b"[1, 2, 3].exists(x, x > 2) ? semver('1.2.3').isGreaterThan(semver('1.0.0')) : false",
    b"device.driver.startsWith(\"gpu\") || !('a' in {'a': 1})",
)
_RELEASE = 37


def _lint(data: bytes, _folder: Path) -> None:
    report = lint(documents.read_text(as_text(data), "input"), Options(validators=validators()))
    list(lint_text(report))
    json.dumps(as_json(report))


def _cel(data: bytes, _folder: Path) -> None:
    expression = as_text(data)
    reads(expression)
    program = compile_selector(expression, _RELEASE)
    program.run({"driver": "gpu.nvidia.com", "attributes": {}, "capacity": {}})


def _regex(data: bytes, _folder: Path) -> None:
    pattern, _, text = as_text(data).partition("\n")
    regex.matches(text[:200], pattern)
    regex.find_all(text[:200], pattern)


def _shape(data: bytes, _folder: Path) -> None:
    document = value_of(data)
    if isinstance(document, dict):
        read_shape(document, AttributeKinds())


def _yaml() -> bytes:
    import yaml

    return "---\n".join(yaml.safe_dump(one) for one in _DOCUMENTS).encode()


_LIST = json.dumps({"apiVersion": "v1", "kind": "List", "items": _DOCUMENTS}).encode()
_SHAPE = {
    "apiVersion": API_VERSION,
    "kind": KIND,
    "identity": {"labels": {}},
    "pools": [],
    "equalGroups": [],
    "dropped": [{"path": "p", "why": "w"}],
}

TARGETS = (
    Target(
        "documents, JSON",
        _lint,
        (),
        [_LIST, *(json.dumps(one).encode() for one in _DOCUMENTS)],
        ("driver.analysis.documents:read_text",),
    ),
    Target("documents, YAML", _lint, (), [_yaml()], ("driver.analysis.documents:read_text",)),
    Target(
        "documents, files",
        lambda data, folder: documents.load([written(folder, "d.yaml", data)]),
        (),
        [_yaml()],
        ("driver.analysis.documents:load",),
    ),
    Target(
        "CEL selector",
        _cel,
        (CelError,),
        [_EXPRESSIONS[2], _EXPRESSIONS[3]],
        ("driver.analysis.cel.parser:parse", "driver.analysis.lint.expressions:reads"),
    ),
    Target(
        "CEL grammar",
        lambda data, _: parse(as_text(data)),
        (CelError,),
        _EXPRESSIONS,
        ("driver.analysis.cel.parser:parse",),
    ),
    Target(
        "CEL regular expression",
        _regex,
        (CelError,),
        [b"^[a-z]+$\nabc", b"(a|b)*c\nabc"],
        ("driver.analysis.cel.regex:find_all",),
    ),
    Target(
        "URL",
        lambda data, _: parse_url(as_text(data)),
        (CelError,),
        [b"https://a.b:80/c?d=e#f", b"http://[::1]/"],
        ("driver.analysis.cel.urls:parse",),
    ),
    Target("semantic version", lambda data, _: semver(as_text(data)), (CelError,), [b"1.2.3-a.1+b"]),
    Target("tolerant version", lambda data, _: tolerant_semver(as_text(data)), (CelError,), [b"v1.2"]),
    Target(
        "quantity of documents",
        lambda data, _: quantity.parse(as_text(data)),
        (quantity.QuantityError,),
        [b"80Gi", b"1500m", b"1e3", b"0.5", b"-1Ki"],
        ("driver.analysis.quantity:parse",),
    ),
    Target(
        "quantity value",
        lambda data, _: quantity.read(value_of(data)),
        (quantity.QuantityError,),
        [b'"80Gi"', b"7", b"0.5"],
        ("driver.analysis.quantity:read",),
    ),
    Target("shape", _shape, (ShapeError,), [json.dumps(_SHAPE).encode()], ("driver.analysis.shape.export:read",)),
)
