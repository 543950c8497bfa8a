"""The image without a registry: when it is built again, from where, and what the Dockerfile may hold."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from hack import image

DOCKERFILE = image.REPOSITORY / "Dockerfile"


@pytest.fixture
def repository(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A small stand-in with every input."""
    for name in image.INPUTS:
        if (image.REPOSITORY / name).is_dir():
            (tmp_path / name).mkdir()
            (tmp_path / name / "module.py").write_text("x = 1\n")
        else:
            (tmp_path / name).write_text("text")
    monkeypatch.setattr(image, "REPOSITORY", tmp_path)
    return tmp_path


def test_every_input_changes_the_hash(repository: Path) -> None:
    before = image.content_hash()
    for name in image.INPUTS:
        path = repository / name / "module.py" if (repository / name).is_dir() else repository / name
        kept = path.read_text()
        path.write_text(kept + "#")
        assert image.content_hash() != before, name
        path.write_text(kept)
    assert image.content_hash() == before


def test_a_new_name_and_a_moved_file_change_the_hash(repository: Path) -> None:
    before = image.content_hash()
    (repository / "driver" / "module.py").rename(repository / "driver" / "renamed.py")
    assert image.content_hash() != before


def test_what_is_built_in_place_does_not_change_the_hash(repository: Path) -> None:
    before = image.content_hash()
    (repository / "native" / "__pycache__").mkdir()
    (repository / "native" / "__pycache__" / "a.cpython-313.pyc").touch()
    (repository / "native" / "_nvml.abi3.so").touch()
    assert image.content_hash() == before


@pytest.mark.parametrize(
    ("file", "text", "expected"),
    [
        ("sources.list", "deb http://mirror.example/debian bookworm main\n", "http://mirror.example/debian"),
        (
            "sources.list.d/d.sources",
            "Types: deb\nURIs: https://m.example/debian\nSuites: x\n",
            "https://m.example/debian",
        ),
        ("sources.list", "# deb http://off.example/debian bookworm main\n", "http://deb.debian.org/debian"),
        ("sources.list", "deb https://other.example/nodesource node main\n", "http://deb.debian.org/debian"),
    ],
    ids=["one-line", "deb822", "comment", "somebody else's"],
)
def test_the_mirror_is_the_machine_s_own(tmp_path: Path, file: str, text: str, expected: str) -> None:
    (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / file).write_text(text)
    assert image.mirror(tmp_path) == expected


def test_a_missing_tool_is_named_with_the_command_that_installs_it(
    repository: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(image.ImageError, match="apt-get install --no-install-recommends buildah mmdebstrap"):
        image.build(tmp_path / "out.tar")


def test_a_cached_image_is_copied_without_any_tool(
    repository: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", str(tmp_path))
    cached = image.cache_folder() / f"gpudra-{image.content_hash()}.tar"
    cached.parent.mkdir(parents=True)
    cached.write_text("archive")
    image.build(tmp_path / "out.tar")
    assert (tmp_path / "out.tar").read_text() == "archive"


def test_everything_that_the_dockerfile_copies_is_an_input_and_passes_the_ignore_file() -> None:
    copied = {
        source
        for line in DOCKERFILE.read_text().splitlines()
        if line.startswith("COPY ") and "--from" not in line
        for source in line.split()[1:-1]
    }
    assert copied == set(image.INPUTS) - {"Dockerfile"}
    allowed = {line[1:] for line in (image.REPOSITORY / ".dockerignore").read_text().splitlines() if line[:1] == "!"}
    assert copied == allowed


def test_the_dockerfile_needs_no_network_frontend_and_no_builder_s_specialities() -> None:
    text = DOCKERFILE.read_text()
    assert "# syntax=" not in text
    assert "--mount" not in text
    assert "<<" not in text
    assert "--require-hashes" in text


def test_the_last_stage_takes_only_the_finished_environment() -> None:
    last = re.split(r"^FROM ", DOCKERFILE.read_text(), flags=re.MULTILINE)[-1]
    assert re.findall(r"^COPY .*$", last, flags=re.MULTILINE) == ["COPY --from=build /opt/gpudra /opt/gpudra"]
    assert "RUN" not in last
