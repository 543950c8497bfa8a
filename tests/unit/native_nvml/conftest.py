"""A small NVML of our own, compiled once: copies of it at different paths are different nodes in one process."""

from __future__ import annotations

import itertools
import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from native.nvml import NvmlSession, make_backend
from native.nvml.protocol import Nvml
from tests.support.nvmlsessions import MakeSession, begin_counting, nvml_threads

HERE = Path(__file__).parent
HEADERS = HERE.parents[2] / "native" / "csrc" / "vendor"
ADDRESSES = ("0000:1b:00.0", "0000:43:00.0", "0000:52:00.0", "0000:61:00.0")


@dataclass
class StubNode:
    """One copy of the stub library and the lines of its configuration."""

    library: Path
    gpus: tuple[str, ...] = ADDRESSES
    lines: list[str] = field(default_factory=list)

    def write(self) -> None:
        text = "".join(f"{line}\n" for line in (*(f"gpu {address}" for address in self.gpus), *self.lines))
        new = self.library.with_name(self.library.name + ".conf.new")
        new.write_text(text)
        new.replace(self.library.with_name(self.library.name + ".conf"))

    def code(self, function: str, code: int, address: str = "*") -> StubNode:
        return self._add(f"code {function} {address} {code}")

    def text(self, function: str, raw: bytes, address: str = "*") -> StubNode:
        return self._add(f"text {function} {address} {raw.hex()}")

    def hang(self, function: str, address: str = "*") -> StubNode:
        return self._add(f"hang {function} {address}")

    def set(self, name: str, number: int) -> StubNode:
        return self._add(f"{name} {number}")

    def mig(self, address: str) -> StubNode:
        return self._add(f"mig on {address}")

    def gpu_instance(self, address: str, number: int, profile: int, start: int, size: int) -> StubNode:
        return self._add(f"gi {number}:{profile}:{start}:{size} {address}")

    def compute_instance(self, address: str, instance: int, number: int, profile: int, index: int) -> StubNode:
        """One compute slice from the start; ``index`` is that of the MIG device."""
        return self._add(f"ci {instance}:{number}:{profile}:0:1:{index} {address}")

    def event(self, address: str, kind: int, data: int = 0, gi: int = 0xFFFFFFFF, ci: int = 0xFFFFFFFF) -> StubNode:
        return self._add(f"event {kind:x}:{data}:{gi}:{ci} {address}")

    def mend(self) -> None:
        """All faults gone; calls that hang come back."""
        self.lines.clear()
        self.write()

    def _add(self, line: str) -> StubNode:
        self.lines.append(line)
        self.write()
        return self


def compile_stub(folder: Path) -> Path:
    target = folder / "stub.o"
    command = ["cc", "-c", "-fPIC", "-O1", "-Wall", "-Wextra", "-Werror", "-Wno-deprecated-declarations"]
    command += ["-DNVML_NO_UNVERSIONED_FUNC_DEFS", f"-I{HEADERS}"]
    subprocess.run([*command, "-o", str(target), str(HERE / "stub.c")], check=True)
    return target


def link_stub(compiled: Path, target: Path, absent: tuple[str, ...] = ()) -> Path:
    script = target.with_suffix(".map")
    script.write_text(f"{{ local: {';'.join(absent)}; }};" if absent else "{ global: *; };")
    command = ["cc", "-shared", f"-Wl,--version-script={script}", "-o", str(target), str(compiled), "-ldl", "-lpthread"]
    subprocess.run(command, check=True)
    return target


@pytest.fixture(scope="session")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    folder = tmp_path_factory.mktemp("stub")
    stub = compile_stub(folder)
    done: dict[tuple[str, ...], Path] = {}

    def library(*absent: str) -> Path:
        if absent not in done:
            done[absent] = link_stub(stub, folder / f"stub-{len(done)}.so", absent)
        return done[absent]

    return library


@pytest.fixture
def make_node(compiled: Callable[..., Path], tmp_path: Path) -> Iterator[Callable[..., StubNode]]:
    numbers = itertools.count()
    nodes: list[StubNode] = []

    def make(*, absent: tuple[str, ...] = (), gpus: tuple[str, ...] = ADDRESSES) -> StubNode:
        folder = tmp_path / f"node-{next(numbers)}"
        folder.mkdir()
        node = StubNode(Path(shutil.copy(compiled(*absent), folder / "libnvidia-ml.so.1")), gpus)
        node.write()
        nodes.append(node)
        return node

    yield make
    for node in nodes:
        node.mend()


@pytest.fixture
def node(make_node: Callable[..., StubNode]) -> StubNode:
    return make_node()


@pytest.fixture(params=["cffi", "pynvml"])
def backend_name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def opened(backend_name: str) -> Iterator[Callable[[StubNode], Nvml]]:
    libraries: list[Nvml] = []

    def make(node: StubNode) -> Nvml:
        library = make_backend(node.library, backend_name)
        libraries.append(library)
        library.open()
        return library

    yield make
    for library in libraries:
        library.close()


@pytest.fixture
def until() -> Callable[[Callable[[], bool]], None]:
    """Waits for a condition that another thread brings about."""

    def wait(condition: Callable[[], bool], seconds: float = 20.0) -> None:
        end = time.monotonic() + seconds
        pause = threading.Event()
        while not condition():
            assert time.monotonic() < end, "the condition did not come about"
            pause.wait(0.005)

    return wait


@pytest.fixture
def session_of(backend_name: str, until) -> Iterator[MakeSession]:
    sessions: list[NvmlSession] = []
    begin_counting()

    def make(node, **options: object) -> NvmlSession:
        session = NvmlSession(node.library, backend_name, **{"call_timeout": 60.0, **options})  # type: ignore[arg-type]
        sessions.append(session)
        make.nodes.append(node)  # type: ignore[attr-defined]
        return session

    make.nodes = []  # type: ignore[attr-defined]
    yield make
    for node in make.nodes:  # type: ignore[attr-defined]
        node.mend()
    assert all(session.close(20) for session in sessions)
    until(lambda: not nvml_threads())


@pytest.fixture
def split(node: StubNode) -> StubNode:
    """The second GPU is split: a half with one device, a 1g with two, and a 1g with none."""
    gpu = ADDRESSES[1]
    node.mig(gpu)
    node.gpu_instance(gpu, 2, 9, 4, 4).gpu_instance(gpu, 7, 19, 0, 1).gpu_instance(gpu, 9, 19, 2, 1)
    node.compute_instance(gpu, 2, 0, 2, index=0)
    return node.compute_instance(gpu, 7, 1, 0, index=5).compute_instance(gpu, 7, 0, 0, index=3)
