"""Builds the autoscalers themselves, Cluster Autoscaler and Karpenter, each with its kwok provider, for the tests.

Their sources are not kept here: Cluster Autoscaler is exported from clones that the user names, at the commits that are
pinned below; Karpenter comes from the Go module proxy. The programs lie in the cache folder, each with a stamp.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Final

from hack.autoscaler.build import CACHE, CLUSTER_AUTOSCALER, HERE, KARPENTER, BuildError

APIS: Final = "55c37cd5eb550756c5ccc5a89e9068d77797e575"
"""The commit of kubernetes/autoscaler whose ``cluster-autoscaler/apis`` is built in: that of the core's day."""

RELEASE: Final = "37.2"
"""Kubernetes' modules that Cluster Autoscaler is built with, 0.37.2 and 1.37.2: its go.mod names their candidates."""

GO_FOR_KARPENTER: Final = "go1.26.9"
"""The toolchain that Karpenter's go.mod asks for; Go fetches it where it is older itself."""

KARPENTER_MAIN: Final = HERE / "go" / "karpenter.go"

_CANDIDATE = "37.0-rc.0"
_APIS_MODULE = "k8s.io/autoscaler/cluster-autoscaler/apis"
_CORE_URL = "https://github.com/kubernetes-sigs/cluster-autoscaler"
_APIS_URL = "https://github.com/kubernetes/autoscaler"
_FLAGS = ("-mod=mod", "-trimpath", "-ldflags", "-s -w")


def folder(name: str) -> Path:
    """Where a program and its sources lie: beside the cache folder of the questions' program."""
    return CACHE.parent / name


def program(name: str) -> Path | None:
    """The program of this name as it would be built now, or None where it has not been built."""
    where = folder(name)
    stamp = where / "stamp"
    binary = where / name
    return binary if binary.is_file() and stamp.is_file() and stamp.read_text() == _stamp(name) else None


def cluster_autoscaler(core: Path, autoscaler: Path, say: Callable[[str], None] = print) -> Path:
    """Build Cluster Autoscaler's ``kwok`` from two clones (bare or not); some ten minutes when Go's cache is cold.

    Args:
        core: a clone of kubernetes-sigs/cluster-autoscaler that has the commit ``CLUSTER_AUTOSCALER``.
        autoscaler: a clone of kubernetes/autoscaler that has the commit ``APIS``.
        say: gets a line before each long step.

    Raises:
        BuildError: no Go or no git, a commit is not in its clone, or the compiler complains.
    """
    name = "cluster-autoscaler"
    if ready := program(name):
        return ready
    source = _empty(folder(name) / "src")
    say(f"exporting {CLUSTER_AUTOSCALER[:12]} and {APIS[:12]} ...")
    _export(core, CLUSTER_AUTOSCALER, ".", source, _CORE_URL)
    apis = _empty(folder(name) / "apis")
    _export(autoscaler, APIS, "cluster-autoscaler/apis", apis, _APIS_URL)
    module = source / "go.mod"
    text = module.read_text().replace(_CANDIDATE, RELEASE)
    module.write_text(f"{text}\nreplace {_APIS_MODULE} => {apis / 'cluster-autoscaler' / 'apis'}\n")
    say("building cluster-autoscaler (ten minutes when Go's cache is cold) ...")
    return _build(name, source, "./kwok", {})


def karpenter(say: Callable[[str], None] = print) -> Path:
    """Build Karpenter with its kwok provider from the module proxy; some ten minutes when Go's cache is cold.

    It is ``go/karpenter.go``: what Karpenter's own ``kwok`` starts, and its instance types can be given devices.

    Raises:
        BuildError: no Go, the proxy does not answer, or the compiler complains.
    """
    name = "karpenter"
    if ready := program(name):
        return ready
    source = _empty(folder(name) / "src")
    lines = ["module gpudra.dev/karpenter", "", "go 1.26.9", "", f"require sigs.k8s.io/karpenter {KARPENTER}", ""]
    (source / "go.mod").write_text("\n".join(lines))
    shutil.copy(KARPENTER_MAIN, source / "main.go")
    toolchain = {"GOTOOLCHAIN": GO_FOR_KARPENTER}
    say(f"building karpenter {KARPENTER} (ten minutes when Go's cache is cold) ...")
    _run(["go", "mod", "tidy"], source, toolchain)
    return _build(name, source, ".", toolchain)


def karpenter_module() -> Path:
    """The unpacked module of the pinned Karpenter, with its CRDs in ``pkg/apis/crds`` and ``kwok/apis/crds``.

    Raises:
        BuildError: no Go, or the program was not built here.
    """
    source = folder("karpenter") / "src"
    if not source.is_dir():
        raise BuildError("Karpenter was not built here: python -m hack.autoscaler build karpenter")
    environment = {"GOTOOLCHAIN": GO_FOR_KARPENTER}
    command = ["go", "list", "-mod=mod", "-m", "-f", "{{.Dir}}", "sigs.k8s.io/karpenter"]
    return Path(_run(command, source, environment).strip())


def _build(name: str, source: Path, package: str, environment: dict[str, str]) -> Path:
    binary = folder(name) / name
    _run(["go", "build", *_FLAGS, "-o", str(binary), package], source, environment)
    (folder(name) / "stamp").write_text(_stamp(name))
    return binary


def _stamp(name: str) -> str:
    pinned = (CLUSTER_AUTOSCALER, APIS, RELEASE)
    if name == "karpenter":
        pinned = (KARPENTER, GO_FOR_KARPENTER, KARPENTER_MAIN.read_text())
    return hashlib.sha256(repr((name, pinned, _FLAGS)).encode()).hexdigest()


def _empty(path: Path) -> Path:
    shutil.rmtree(path, ignore_errors=True)
    path.mkdir(parents=True)
    return path


def _export(repository: Path, commit: str, path: str, target: Path, url: str) -> None:
    archive = target.with_suffix(".tar")
    try:
        _run(["git", "-C", str(repository), "archive", "-o", str(archive), commit, path], target, {})
    except BuildError as error:
        raise BuildError(f"{error}; git clone {url}, and name the folder") from error
    with tarfile.open(archive) as opened:
        opened.extractall(target, filter="data")
    archive.unlink()


def _run(command: list[str], where: Path, environment: dict[str, str]) -> str:
    settings = os.environ | {"CGO_ENABLED": "0", "GOWORK": "off"} | environment
    try:
        done = subprocess.run(command, cwd=where, env=settings, capture_output=True, text=True, check=False)
    except OSError as error:
        raise BuildError(f"{command[0]} cannot be started: {error}") from error
    if done.returncode:
        raise BuildError(f"{' '.join(command)}: {(done.stderr or done.stdout).strip()[-4000:]}")
    return done.stdout
