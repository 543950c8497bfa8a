"""Building the autoscalers: what is exported, what is pinned, what is said where something is missing."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from hack.autoscaler import __main__ as verbs
from hack.autoscaler import build, programs
from hack.autoscaler.build import BuildError

GO_MOD = "module m\n\nrequire k8s.io/api v0.37.0-rc.0\n\nrequire k8s.io/kubernetes v1.37.0-rc.0\n"
FAKE_GO = """#!/bin/sh
echo "$@" >> "$LOG"
[ -n "$FAIL" ] && { echo "$FAIL" >&2; exit 1; }
while [ $# -gt 0 ]; do [ "$1" = -o ] && { echo built > "$2"; }; shift; done
exit 0
"""


def repository(folder: Path, files: dict[str, str]) -> tuple[Path, str]:
    """A git repository with one commit, and that commit."""
    folder.mkdir()

    def git(*arguments: str) -> str:
        who = ("-c", "user.name=t", "-c", "user.email=t@example.com")
        done = subprocess.run(["git", "-C", str(folder), *who, *arguments], capture_output=True, text=True, check=True)
        return done.stdout.strip()

    git("init", "-q")
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    git("add", ".")
    git("commit", "-q", "-m", "all")
    return folder, git("rev-parse", "HEAD")


@pytest.fixture
def sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """Two clones at the pinned commits, a Go that writes down what it is asked, an empty cache."""
    core, pinned = repository(tmp_path / "core", {"go.mod": GO_MOD, "kwok/main.go": "package main\n"})
    autoscaler, apis = repository(
        tmp_path / "autoscaler", {"cluster-autoscaler/apis/go.mod": "module apis\n", "vertical-pod-autoscaler/x": ""}
    )
    monkeypatch.setattr(programs, "CLUSTER_AUTOSCALER", pinned)
    monkeypatch.setattr(programs, "APIS", apis)
    for module in (programs, build):
        monkeypatch.setattr(module, "CACHE", tmp_path / "cache" / "autoscaler")
    tools = tmp_path / "tools"
    tools.mkdir()
    (tools / "go").write_text(FAKE_GO)
    (tools / "go").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tools}:/usr/bin:/bin")
    monkeypatch.setenv("LOG", str(tmp_path / "asked"))
    monkeypatch.delenv("FAIL", raising=False)
    return core, autoscaler


def asked(tmp_path: Path) -> list[str]:
    """What Go was asked to do."""
    log = tmp_path / "asked"
    return log.read_text().splitlines() if log.exists() else []


def test_cluster_autoscaler_is_built_of_the_two_clones(sources: tuple[Path, Path], tmp_path: Path) -> None:
    said: list[str] = []

    binary = programs.cluster_autoscaler(*sources, said.append)

    assert binary == tmp_path / "cache" / "cluster-autoscaler" / "cluster-autoscaler"
    source = binary.parent / "src"
    module = (source / "go.mod").read_text()
    assert "k8s.io/api v0.37.2" in module
    assert "k8s.io/kubernetes v1.37.2" in module
    apis = binary.parent / "apis" / "cluster-autoscaler" / "apis"
    assert f"replace k8s.io/autoscaler/cluster-autoscaler/apis => {apis}\n" in module
    assert (apis / "go.mod").read_text() == "module apis\n"
    assert not (binary.parent / "apis" / "vertical-pod-autoscaler").exists()
    (command,) = asked(tmp_path)
    assert command.startswith("build -mod=mod -trimpath")
    assert command.endswith(f"-o {binary} ./kwok")
    assert len(said) == 2
    assert programs.program("cluster-autoscaler") == binary


def test_what_is_built_is_not_built_again_until_a_pin_changes(
    sources: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    binary = programs.cluster_autoscaler(*sources, lambda _: None)
    assert programs.cluster_autoscaler(*sources, pytest.fail) == binary

    monkeypatch.setattr(programs, "RELEASE", "37.3")

    assert programs.program("cluster-autoscaler") is None
    programs.cluster_autoscaler(*sources, lambda _: None)
    assert "v0.37.3" in (binary.parent / "src" / "go.mod").read_text()
    assert len(asked(tmp_path)) == 2


def test_a_clone_without_the_commit_is_told_with_the_address(
    sources: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(programs, "APIS", "0" * 40)

    with pytest.raises(BuildError, match=r"git clone https://github\.com/kubernetes/autoscaler, and name the folder"):
        programs.cluster_autoscaler(*sources, lambda _: None)


def test_the_compilers_words_are_passed_on_and_nothing_counts_as_built(
    sources: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAIL", "kwok/main.go:3:1: undefined: x")

    with pytest.raises(BuildError, match="undefined: x"):
        programs.cluster_autoscaler(*sources, lambda _: None)
    assert programs.program("cluster-autoscaler") is None


def test_a_machine_without_go_is_told_so(
    sources: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "tools" / "go").unlink()
    monkeypatch.setenv("PATH", str(tmp_path / "tools"))

    with pytest.raises(BuildError, match="go cannot be started"):
        programs.karpenter(lambda _: None)


@pytest.mark.usefixtures("sources")
def test_karpenter_is_built_of_its_module_with_our_main(tmp_path: Path) -> None:
    binary = programs.karpenter(lambda _: None)

    source = binary.parent / "src"
    assert f"require sigs.k8s.io/karpenter {build.KARPENTER}\n" in (source / "go.mod").read_text()
    assert (source / "main.go").read_text() == programs.KARPENTER_MAIN.read_text()
    assert [command.split()[0] for command in asked(tmp_path)] == ["mod", "build"]
    assert programs.karpenter(pytest.fail) == binary


@pytest.mark.usefixtures("sources")
def test_a_change_of_our_main_is_a_change_of_the_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    programs.karpenter(lambda _: None)
    other = tmp_path / "karpenter.go"
    other.write_text("package main\n")

    monkeypatch.setattr(programs, "KARPENTER_MAIN", other)

    assert programs.program("karpenter") is None


@pytest.mark.usefixtures("sources")
def test_the_module_of_a_karpenter_that_was_never_built_is_not_guessed() -> None:
    with pytest.raises(BuildError, match=r"hack\.autoscaler build karpenter"):
        programs.karpenter_module()


class TestVerbs:
    def test_the_path_is_all_that_goes_to_standard_output(
        self, sources: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        names = [str(folder) for folder in sources]
        monkeypatch.setattr("sys.argv", ["hack.autoscaler", "build", "cluster-autoscaler", *names])

        assert verbs.main() == 0

        out, err = capsys.readouterr()
        assert Path(out.strip()) == programs.program("cluster-autoscaler")
        assert "building cluster-autoscaler" in err

    @pytest.mark.usefixtures("sources")
    def test_what_stands_in_the_way_is_told_with_code_2(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        monkeypatch.setattr("sys.argv", ["hack.autoscaler", "golden", str(tmp_path / "none")])

        assert verbs.main() == 2
        assert "and name the folder" in capsys.readouterr().err
