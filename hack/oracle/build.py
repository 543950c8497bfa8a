"""Builds the oracle of one Kubernetes release from the Go module k8s.io/dynamic-resource-allocation.

The allocator's variants and upstream's test table are internal to that module, so the program is compiled inside a copy
of it, with the module's own go.mod and go.sum as the pin. The copy lies in the cache folder, never in this repository.

One thing is changed in the copy: where a release leaves the order of pools to a Go map, the copy sorts them by driver
and name, as the later variants do. Otherwise two runs of upstream itself would not agree on the devices.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

SOURCES = Path(__file__).parent / "go"
MODULE = "k8s.io/dynamic-resource-allocation"
VERSIONS = ("0.37.2", "0.36.3", "0.34.4")
"""The newest patch of each release that the port follows, the newest release first."""

_SORT = """
func oracleSort(pools []*Pool) {
	sort.Slice(pools, func(i, j int) bool { return pools[i].PoolID.String() < pools[j].PoolID.String() })
}
"""


class OracleError(Exception):
    """The oracle cannot be built or does not answer; the text says why and what to do."""


@dataclass(frozen=True, slots=True)
class Release:
    """What differs between the modules of two releases."""

    version: str

    @property
    def minor(self) -> int:
        """37 for 0.37.2."""
        return int(self.version.split(".")[1])

    @property
    def sources(self) -> dict[str, str]:
        """The file of ``go/`` -> where it goes in the copy."""
        here = "structured/oracle"
        files = {"main.go": f"{here}/main.go", "cases_test.go": f"{here}/cases_test.go"}
        files["derived137.go" if self.minor >= 37 else "underived.go"] = f"{here}/compile.go"
        if self.minor >= 36:
            files |= {
                "since136.go": f"{here}/release.go",
                "taints.go": f"{here}/taints.go",
                "tracker.go": "resourceslice/tracker/oracle.go",
            }
        else:
            files |= {"until135.go": f"{here}/release.go", "untracked.go": f"{here}/taints.go"}
        return files

    @property
    def unsorted(self) -> tuple[str, ...]:
        """The variants whose pools come in the order of a Go map."""
        return ("stable",) if self.minor >= 36 else ("stable", "incubating", "experimental")

    @property
    def rules(self) -> str:
        """The API version of DeviceTaintRule that the release's tracker reads."""
        return "v1" if self.minor >= 37 else "v1beta2"

    def used(self, variant: str) -> str:
        """The argument of ``NewAllocator`` that says what is allocated."""
        whole = variant == "experimental" or (variant == "incubating" and self.minor >= 36)
        return "used" if whole else "used.AllocatedDevices"


def folder(version: str) -> Path:
    """Where the oracle of this version lies, built or not."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / "gpudra" / "oracle" / version


def binary(version: str) -> Path | None:
    """The oracle of this version, or None where it has not been built from the present sources."""
    program = folder(version) / "oracle"
    stamp = folder(version) / "stamp"
    if program.is_file() and stamp.is_file() and stamp.read_text() == _stamp(version):
        return program
    return None


def build(version: str) -> Path:
    """Build the oracle (a minute when Go's cache is cold) and return the program.

    Raises:
        OracleError: Go is missing, the module cannot be had or does not compile.
    """
    if ready := binary(version):
        return ready
    copy = prepare(version)
    program = folder(version) / "oracle"
    _go(["build", "-trimpath", "-o", str(program), "./structured/oracle"], copy)
    (folder(version) / "stamp").write_text(_stamp(version))
    return program


def prepare(version: str) -> Path:
    """The copy of the module with the oracle's files in it."""
    if shutil.which("go") is None:
        raise OracleError("Go is not installed: get 1.26 or newer from https://go.dev/dl and put it on PATH")
    release = Release(version)
    where = folder(version)
    where.mkdir(parents=True, exist_ok=True)
    answer = json.loads(_go(["mod", "download", "-json", f"{MODULE}@v{version}"], where))
    copy = where / "module"
    if copy.exists():
        shutil.rmtree(copy)
    shutil.copytree(answer["Dir"], copy, copy_function=shutil.copyfile)
    for path in [copy, *copy.rglob("*")]:
        if path.is_dir():
            path.chmod(0o755)
    for name, target in release.sources.items():
        path = copy / target
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text((SOURCES / name).read_text().replace("RULES_VERSION", release.rules))
    for variant in release.unsorted:
        _sort_pools(copy / "structured" / "internal" / variant, variant)
    return copy


def cases(version: str, variant: str) -> str:
    """What ``go test`` prints when upstream's own table runs over one variant; each case is one line ``CASE {...}``."""
    release = Release(version)
    copy = prepare(version)
    path = copy / "structured" / "oracle" / "cases_test.go"
    more = ""
    if release.minor >= 36 and variant != "stable":
        more = f"allocatortesting.TestLexicographicalAllocator(t, {variant}.SupportedFeatures, make)"
    text = path.read_text().replace("VARIANT", variant).replace("USED", release.used(variant))
    path.write_text(text.replace("LEXICOGRAPHICAL", more))
    return _go(["test", "-count=1", "-v", "-run", "TestCases", "./structured/oracle"], copy)


def _sort_pools(package: Path, variant: str) -> None:
    path = package / f"pools_{variant}.go"
    text = path.read_text()
    end = "\treturn result, nil\n}\n\nfunc addSlice("
    appended = "\tif len(resultWithBindingConditions) != 0 {\n"
    if appended in text:
        text = _once(text, appended, "\toracleSort(result)\n\toracleSort(resultWithBindingConditions)\n" + appended)
    else:
        text = _once(text, end, "\toracleSort(result)\n" + end)
    path.write_text(text)
    (package / "oracle_sort.go").write_text(f'package {variant}\n\nimport "sort"\n{_SORT}')


def _once(text: str, anchor: str, put: str) -> str:
    if text.count(anchor) != 1:
        raise OracleError(f"the module's source has changed: {anchor!r} occurs {text.count(anchor)} times")
    return text.replace(anchor, put)


def _stamp(version: str) -> str:
    release = Release(version)
    digest = hashlib.sha256(repr((version, release.sources, release.unsorted, release.rules, _SORT)).encode())
    for path in sorted(SOURCES.iterdir()):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def _go(arguments: list[str], where: Path) -> str:
    environment = os.environ | {"CGO_ENABLED": "0", "GOWORK": "off"}
    done = subprocess.run(["go", *arguments], cwd=where, env=environment, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise OracleError(f"go {' '.join(arguments)}: {(done.stderr or done.stdout).strip()[-3000:]}")
    return done.stdout
