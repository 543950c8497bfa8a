"""Generated files, the layout that Python and C share, and the build cache."""

from __future__ import annotations

import concurrent.futures
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from native.mock import MockNode, build, layout
from native.mock.layout import GPU, HEADER, RECORDS, RULE, Text
from tests.support.mocknodes import Node


def test_generating_again_gives_the_committed_files() -> None:
    pytest.importorskip("pycparser", reason="only generating needs it")
    from native.mock import generate

    for path, text in generate.outputs().items():
        assert path.read_text() == text, f"run python -m native.mock.generate: {path.name} is out of date"


def test_every_function_of_the_header_has_a_stub() -> None:
    pytest.importorskip("pycparser", reason="only generating needs it")
    from native.mock import generate

    functions = generate.prototypes()
    assert len(functions) > 430
    assert len({function.name for function in functions}) == len(functions)
    assert [function.name for function in functions if function.returns != "nvmlReturn_t"] == ["nvmlErrorString"]
    by_name = {function.name: function for function in functions}
    assert by_name["nvmlDeviceGetName"].subject == "nvmlDevice_t"
    assert by_name["nvmlDeviceGetHandleByIndex_v2"].subject == ""
    assert by_name["nvmlGpuInstanceDestroy"].subject == "nvmlGpuInstance_t"


def test_c_and_python_put_every_field_at_the_same_place(tmp_path: Path) -> None:
    lines = [
        f'printf("{record.name} {member.name} %zu\\n", offsetof(struct {record.name}, {member.name}));'
        for record in RECORDS.values()
        for member in record.fields
    ]
    source = (
        '#include <stddef.h>\n#include <stdio.h>\n#include "node_layout.h"\nint main(void) {' + "\n".join(lines) + "}\n"
    )
    (tmp_path / "offsets.c").write_text(source)
    program = tmp_path / "offsets"
    subprocess.run([build.compiler(), f"-I{build.CSRC}", tmp_path / "offsets.c", "-o", program], check=True)
    for line in subprocess.run([program], capture_output=True, text=True, check=True).stdout.splitlines():
        record, name, offset = line.split()
        assert RECORDS[record].offset(name) == int(offset), (record, name)


@given(st.binary(max_size=layout.TEXT_BYTES), st.integers(-1, 2**62))
def test_a_record_has_its_size_whatever_it_holds(data: bytes, number: int) -> None:
    packed = GPU.pack({"name": Text(data), "memory_total": number})
    assert len(packed) == GPU.size
    start = GPU.offset("name")
    assert packed[start + 8 : start + 8 + len(data)] == data
    assert int.from_bytes(packed[GPU.offset("memory_total") :][:8], sys.byteorder, signed=True) == number
    assert int.from_bytes(packed[GPU.offset("minor") :][:8], sys.byteorder, signed=True) == -1


def test_what_does_not_fit_a_record_is_refused() -> None:
    with pytest.raises(KeyError, match="colour"):
        HEADER.pack({"colour": 1})
    with pytest.raises(ValueError, match="a text of 121 bytes"):
        GPU.pack({"name": Text(bytes(121))})
    with pytest.raises(ValueError, match="function: 65 bytes, at most 64"):
        RULE.pack({"function": bytes(65)})
    with pytest.raises(KeyError):
        RULE.offset("colour")


def test_records_need_no_padding() -> None:
    assert all(record.size % 8 == 0 for record in RECORDS.values())


def test_leaving_a_function_out_changes_only_the_export_list() -> None:
    assert build.version_script(["nvmlB", "nvmlA"]) == (
        "{ global: nvml*; gpudra_mock_marker; local: nvmlA; nvmlB; *; };\n"
    )
    full, old = build.build(), build.build(["nvmlDeviceGetSerial"])
    assert full.programs == old.programs
    assert full.library != old.library
    assert build.build(["nvmlDeviceGetSerial"]) == old


def test_builds_of_several_processes_at_once_leave_one_whole_entry(tmp_path: Path) -> None:
    code = "from native.mock import build; print(build.build().library)"
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path)}

    def run(_: int) -> str:
        done = subprocess.run(
            [sys.executable, "-c", code], env=environment, cwd=Path(__file__).parents[2], capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        libraries = set(pool.map(run, range(2)))
    assert len(libraries) == 1
    entries = list((tmp_path / "gpudra/mock").iterdir())
    assert [entry.name for entry in entries] == [build.key()], "nothing half built is left"
    assert sorted(path.name for path in (entries[0] / "others").iterdir()) == sorted(build.OTHER_LIBRARIES)


def test_without_a_compiler_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", "no-such-compiler")
    build.compiler.cache_clear()
    try:
        with pytest.raises(build.BuildError, match=r"no-such-compiler is not in PATH \(Debian: apt-get install gcc"):
            build.compiler()
    finally:
        build.compiler.cache_clear()


def test_a_compiler_that_fails_is_quoted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = tmp_path / "cc"
    fake.write_text('#!/bin/sh\nif [ "$1" = --version ]; then echo fake 1; else echo "no such luck" >&2; exit 1; fi\n')
    fake.chmod(0o755)
    monkeypatch.setenv("CC", str(fake))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for cached in (build.compiler, build._compiler_version):
        cached.cache_clear()
    try:
        with pytest.raises(build.BuildError, match="no such luck"):
            build.build()
    finally:
        for cached in (build.compiler, build._compiler_version):
            cached.cache_clear()
    assert list((tmp_path / "cache/gpudra/mock").iterdir()) == []


def test_a_node_file_of_another_layout_is_refused(own_node: MockNode) -> None:
    path = Path(own_node.environment["GPUDRA_MOCK_NODE"])
    data = bytearray(path.read_bytes())
    start = HEADER.offset("layout")
    data[start] ^= 1
    path.write_bytes(data)
    done = subprocess.run([own_node.smi, "-L"], env=own_node.environment, capture_output=True, text=True, check=False)
    assert done.returncode == 12
    assert "written by another version of the mock" in done.stderr


def test_no_look_alike_is_built_into_the_package(node_of: Node) -> None:
    built = node_of("t4")
    package = Path(build.__file__).parent
    assert not [path for path in package.rglob("*") if path.suffix in (".so", ".o") or path.name == "nvidia-smi"]
    assert not built.library.resolve().is_relative_to(package)
    assert time.time() > built.library.stat().st_mtime
