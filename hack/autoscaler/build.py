"""Builds the program in the cache folder from Cluster Autoscaler's repository and Karpenter's Go module."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import zipfile
from pathlib import Path
from typing import Final

HERE = Path(__file__).parent
CACHE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "gpudra" / "autoscaler"
CLUSTER_AUTOSCALER: Final = "33c3f97bf2749b1385d9223f1f8856fe345011f7"
KARPENTER: Final = "v1.15.0"
KUBERNETES: Final = "v0.36.3"

_MODULE = "gpudra.dev/autoscaler"
_UTILS = "pkg/simulator/dynamicresources/utils"
_PROCESSOR = "pkg/processors/customresources/dra_processor.go"
_KARPENTER_FILES = ("pool.go", "types.go", "attributebindings.go", "constraint.go")


class BuildError(Exception):
    """The program cannot be built; the text says what is missing and how to get it."""


def build(repository: Path) -> Path:
    """Compile, unless it is there already as it would be now.

    Args:
        repository: a git directory of kubernetes-sigs/cluster-autoscaler that has the commit.

    Raises:
        BuildError: no Go, the commit is not there, the Go module proxy does not answer, or the compiler complains.
    """
    binary, stamp = CACHE / "autoscaler", CACHE / "stamp"
    if binary.exists() and stamp.exists() and stamp.read_text() == _stamp():
        return binary
    source = CACHE / "src"
    shutil.rmtree(source, ignore_errors=True)
    source.mkdir(parents=True)
    _write_module(source)
    _cluster_autoscaler(source, repository)
    _karpenter(source)
    shutil.copy(HERE / "go" / "main.go", source)
    _run(["go", "mod", "tidy"], source)
    _run(["go", "build", "-trimpath", "-o", str(binary), "."], source)
    stamp.write_text(_stamp())
    return binary


def _stamp() -> str:
    """Changes whenever a build would give another program."""
    digest = hashlib.sha256(repr((CLUSTER_AUTOSCALER, KARPENTER, KUBERNETES)).encode())
    for name in ("main.go", "framework.go", "customresources.go", "cloudprovider.go", "scheduling.go"):
        digest.update((HERE / "go" / name).read_bytes())
    return digest.hexdigest()


def _write_module(source: Path) -> None:
    modules = ("api", "apimachinery", "component-helpers", "dynamic-resource-allocation", "client-go")
    lines = [f"module {_MODULE}", "", "go 1.26.0", "", "require ("]
    lines += [f"\tk8s.io/{name} {KUBERNETES}" for name in modules]
    (source / "go.mod").write_text("\n".join([*lines, ")", ""]), encoding="utf-8")


def _cluster_autoscaler(source: Path, repository: Path) -> None:
    for name in ("utilization.go", "sanitize.go", "resource_claims.go"):
        text = _show(repository, f"{_UTILS}/{name}").replace("package utils", "package drautils")
        text = text.replace("sigs.k8s.io/cluster-autoscaler/pkg/simulator/framework", f"{_MODULE}/framework")
        _put(source / "drautils" / name, text)
    processor = _show(repository, _PROCESSOR)
    rules = processor[processor.index("type poolState struct") :]
    head = 'package customresources\n\nimport resourceapi "k8s.io/api/resource/v1"\n\n'
    _put(source / "customresources" / "rules.go", head + rules)
    metrics = _show(repository, "pkg/utils/dynamicresources/metrics.go")
    _put(source / "drametrics" / "metrics.go", metrics.replace("package dynamicresources", "package drametrics"))
    for name, package in (("framework.go", "framework"), ("customresources.go", "customresources")):
        _put(source / package / name, (HERE / "go" / name).read_text(encoding="utf-8"))


def _karpenter(source: Path) -> None:
    module = f"sigs.k8s.io/karpenter@{KARPENTER}"
    with zipfile.ZipFile(_module_zip(module, source)) as archive:

        def text_of(path: str) -> str:
            return archive.read(f"{module}/pkg/{path}").decode()

        for name in _KARPENTER_FILES:
            text = text_of(f"scheduling/dynamicresources/{name}").replace(
                "package dynamicresources", "package karpenter"
            )
            for part in ("cloudprovider", "scheduling"):
                text = text.replace(f'"sigs.k8s.io/karpenter/pkg/{part}"', f'"{_MODULE}/{part}"')
            _put(source / "karpenter" / name, text)
        _put(source / "cloudprovider" / "dynamicresources.go", text_of("cloudprovider/dynamicresources.go"))
    for name, package in (("cloudprovider.go", "cloudprovider"), ("scheduling.go", "scheduling")):
        _put(source / package / name, (HERE / "go" / name).read_text(encoding="utf-8"))


def _module_zip(module: str, folder: Path) -> Path:
    """The module as the proxy serves it, checked against Go's sums; the toolchain may be older than it asks for."""
    command = ["go", "mod", "download", "-json", module]
    answer = json.loads(subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False).stdout or "{}")
    if not answer.get("Sum") or not Path(answer.get("Zip", "")).is_file():
        raise BuildError(f"{' '.join(command)}: {answer.get('Error', 'no answer')}")
    return Path(answer["Zip"])


def _show(repository: Path, path: str) -> str:
    try:
        return _run(["git", "-C", str(repository), "show", f"{CLUSTER_AUTOSCALER}:{path}"], HERE)
    except BuildError as error:
        remedy = "git clone https://github.com/kubernetes-sigs/cluster-autoscaler, and name the folder"
        raise BuildError(f"{error}; {remedy}") from error


def _put(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def _run(command: list[str], folder: Path) -> str:
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    except OSError as error:
        raise BuildError(f"{command[0]} cannot be started: {error}") from error
    if done.returncode:
        raise BuildError(f"{' '.join(command)}: {done.stderr.strip()}")
    return done.stdout
