"""The cluster's programs, built from Go modules into a cache folder.

Four modules (``modules/``), because their dependencies disagree: etcd, kubernetes, containerd, runc. A program is built
when the stamp beside it differs: the stamp is a hash of its module's files, its build flags and its package.
"""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from .layout import ClusterError

DEFAULT_VERSION = "1.37.2"
MODULES = Path(__file__).parent / "modules"
PACKAGES_NEEDED = {
    "libseccomp-dev": "/usr/include/seccomp.h",
    "pkg-config": "/usr/bin/pkg-config",
    "busybox-static": "/bin/busybox",
    "containernetworking-plugins": "/usr/lib/cni/ptp",
    "iptables": "/usr/sbin/iptables",
    "conntrack": "/usr/sbin/conntrack",
    "openssl": "/usr/bin/openssl",
    "iproute2": "/usr/bin/ip",
    "util-linux": "/usr/bin/nsenter",
}
"""Debian packages, each with a file that shows it to be there."""

KUBERNETES = ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kube-proxy", "kubelet", "kubectl")
CONTAINERD = ("containerd", "containerd-shim-runc-v2", "ctr")


@dataclass(frozen=True, slots=True)
class Program:
    """One program: the module folder that pins it, its main package and what go build needs."""

    name: str
    module: str
    package: str
    flags: tuple[str, ...] = ()
    cgo: bool = False

    def stamp(self) -> str:
        """Changes whenever a build would give another program."""
        digest = hashlib.sha256(repr((self.package, self.flags, self.cgo, platform.machine())).encode())
        for name in ("go.mod", "go.sum", "tools.go"):
            digest.update((MODULES / self.module / name).read_bytes())
        return digest.hexdigest()


def programs(version: str = DEFAULT_VERSION) -> tuple[Program, ...]:
    """All programs of a cluster of this Kubernetes version, the slowest builds first within each module.

    Raises:
        ClusterError: no module here pins this version.
    """
    module = kubernetes_module(version)
    major, minor = version.split(".")[:2]
    stamps = {"gitVersion": f"v{version}", "gitMajor": major, "gitMinor": minor, "gitTreeState": "clean",
              "gitCommit": "none"}  # fmt: skip
    # Without a version the components report v0.0.0 and decide wrongly about feature gates.
    linked = " ".join(f"-X k8s.io/component-base/version.{key}={value}" for key, value in stamps.items())
    return (
        Program("etcd", "etcd", "go.etcd.io/etcd/server/v3", ("-ldflags", "-s -w")),
        *(Program(n, module, f"k8s.io/kubernetes/cmd/{n}", ("-ldflags", f"-s -w {linked}")) for n in KUBERNETES),
        *(
            Program(n, "containerd", f"github.com/containerd/containerd/v2/cmd/{n}",
                    ("-tags", "no_btrfs no_devmapper no_zfs", "-ldflags", "-s -w"))
            for n in CONTAINERD
        ),
        Program("runc", "runc", "github.com/opencontainers/runc", ("-tags", "seccomp", "-ldflags", "-s -w"), cgo=True),
    )  # fmt: skip


def resolve(version: str) -> str:
    """The pinned version that ``1.37`` or ``1.37.2`` means.

    Raises:
        ClusterError: no module here pins such a version.
    """
    for pinned in _pinned():
        if version in (pinned, pinned.rpartition(".")[0]):
            return pinned
    raise ClusterError(f"Kubernetes {version} is not pinned in {MODULES}; there is {', '.join(_pinned())}")


def kubernetes_module(version: str) -> str:
    """The folder below ``modules`` that pins this version: ``kubernetes`` or ``kubernetes-1.34``."""
    return _pinned()[resolve(version)]


def _pinned() -> dict[str, str]:
    """Version -> folder below ``modules``, as the go.mod files say."""
    pinned = {}
    for folder in sorted(MODULES.glob("kubernetes*")):
        for line in (folder / "go.mod").read_text().splitlines():
            words = line.removeprefix("require ").split()
            if words[:1] == ["k8s.io/kubernetes"]:
                pinned[words[1].removeprefix("v")] = folder.name
    return pinned


def cache_folder(version: str = DEFAULT_VERSION) -> Path:
    """Where the programs of a version lie."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / "gpudra" / "cluster" / version / "bin"


def missing(version: str = DEFAULT_VERSION) -> list[Program]:
    """The programs that are absent or were built from other module files."""
    folder = cache_folder(version)
    return [
        program
        for program in programs(version)
        if not (folder / program.name).is_file() or _read(folder / f".{program.name}.stamp") != program.stamp()
    ]


def build(version: str = DEFAULT_VERSION, *, report: Callable[[str], None] = print) -> Path:
    """Build what is missing, one program after the other; return the folder.

    Raises:
        ClusterError: Go or a Debian package is missing, or a build failed (with the compiler's words).
    """
    check_packages()
    wanted = missing(version)
    folder = cache_folder(version)
    folder.mkdir(parents=True, exist_ok=True)
    if wanted and shutil.which("go") is None:
        raise ClusterError("Go is not installed: get 1.26 or newer from https://go.dev/dl and put it on PATH")
    for number, program in enumerate(wanted, 1):
        report(f"[{number}/{len(wanted)}] building {program.name} ({program.package}) ...")
        begin = time.monotonic()
        _build(program, folder)
        report(f"[{number}/{len(wanted)}] {program.name}: {time.monotonic() - begin:.0f} s")
    return folder


def _build(program: Program, folder: Path) -> None:
    fresh = folder / f".{program.name}.new"
    command = ["go", "build", "-trimpath", *program.flags, "-o", str(fresh), program.package]
    environment = os.environ | {"CGO_ENABLED": str(int(program.cgo)), "GOWORK": "off"}
    done = subprocess.run(command, cwd=MODULES / program.module, env=environment, capture_output=True, text=True)  # noqa: PLW1510 -- the code is looked at below
    if done.returncode != 0:
        raise ClusterError(f"{program.name} was not built: {' '.join(command)} said\n{done.stderr[-4000:]}")
    fresh.replace(folder / program.name)
    (folder / f".{program.name}.stamp").write_text(program.stamp())


def check_packages() -> None:
    """Look for the Debian packages.

    Raises:
        ClusterError: some are missing; the text is the command that installs them.
    """
    absent = sorted(package for package, proof in PACKAGES_NEEDED.items() if not Path(proof).exists())
    if absent:
        raise ClusterError(f"packages are missing: apt-get install --no-install-recommends {' '.join(absent)}")


def _read(path: Path) -> str | None:
    try:
        return path.read_text()
    except FileNotFoundError:
        return None
