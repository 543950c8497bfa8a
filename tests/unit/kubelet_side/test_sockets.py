"""Socket paths fit, belong to one instance, and are closed to others."""

from __future__ import annotations

import errno
import os
import socket
import stat
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kubeletplugin.sockets import (
    MAX_SOCKET_PATH,
    BoundSocket,
    SocketError,
    SocketPaths,
    bind_server,
    file_identity,
    fresh_paths,
    is_alive,
    make_folder,
    remove_dead,
    socket_paths,
)

PLUGINS = Path("/var/lib/kubelet/plugins")
REGISTRY = Path("/var/lib/kubelet/plugins_registry")
POD = "ad4af911-5bcd-47c5-a554-f35cea869472"
LONG_DRIVER = "a" * 63


def paths(driver: str, uid: str | None = None, root: str = "/var/lib/kubelet") -> SocketPaths:
    return socket_paths(driver, Path(root, "plugins"), Path(root, "plugins_registry"), uid)


def test_names_are_the_go_helpers_where_they_fit() -> None:
    assert paths("gpu.example.com") == SocketPaths(
        PLUGINS / "gpu.example.com/dra.sock", REGISTRY / "gpu.example.com-reg.sock"
    )
    assert paths("gpu.example.com", POD) == SocketPaths(
        PLUGINS / f"gpu.example.com/dra-{POD}.sock", REGISTRY / f"gpu.example.com-{POD}-reg.sock"
    )


def test_long_registration_names_are_hashed_as_upstream_does() -> None:
    example = paths("gpu.dra-example-driver.sigs.k8s.io", POD).registration
    assert example.name == "gpu.dra-example-driver.sigs.k8s.io-Jk8-oymVURI-reg.sock"
    assert paths(LONG_DRIVER, POD).registration.name == "dra-tbWFcO8QLaMfCl-a79Gzgw-reg.sock"


@pytest.mark.bug("B115")
def test_the_longest_driver_name_fits_with_a_pod_uid() -> None:
    chosen = paths(LONG_DRIVER, POD)
    assert chosen.dra.parent == PLUGINS / LONG_DRIVER
    assert max(len(os.fsencode(path)) for path in (chosen.dra, chosen.registration)) <= MAX_SOCKET_PATH


@pytest.mark.bug("B115")
@pytest.mark.parametrize(("length", "name"), [(106, "dra.sock"), (107, "dra.sock"), (108, "dra"), (109, "dra")])
def test_a_path_of_107_bytes_is_used_and_one_of_108_is_shortened(length: int, name: str) -> None:
    plugins_dir = Path("/" + "r" * (length - len("//net.example.com/dra.sock")))
    assert len(os.fsencode(plugins_dir / "net.example.com/dra.sock")) == length
    assert socket_paths("net.example.com", plugins_dir, REGISTRY, None).dra.name == name


@pytest.mark.bug("B115")
def test_a_path_that_no_name_fits_into_is_refused_with_advice() -> None:
    with pytest.raises(SocketError, match=r"allow 107; use a shorter driver name, or a shorter path"):
        paths(LONG_DRIVER, POD, root="/var/lib/rancher/k3s/agent/kubelet")


@pytest.mark.bug("B115")
def test_the_limit_is_what_the_kernel_accepts(root: Path) -> None:
    longest = root / ("s" * (MAX_SOCKET_PATH - len(os.fsencode(root)) - 1))
    with socket.socket(socket.AF_UNIX) as fitting:
        fitting.bind(os.fspath(longest))
    with socket.socket(socket.AF_UNIX) as too_long, pytest.raises(OSError, match="too long"):
        too_long.bind(os.fspath(longest) + "s")


def test_names_shortened_for_two_pods_differ() -> None:
    one, other = (paths(LONG_DRIVER, uid) for uid in (POD, POD.replace("ad4", "ad5")))
    assert one.dra != other.dra
    assert one.registration != other.registration


@settings(deadline=None)  # a loaded machine is slow, not wrong
@given(
    driver=st.from_regex(r"[a-z0-9]([-a-z0-9.]{0,61}[a-z0-9])?", fullmatch=True),
    uid=st.none() | st.uuids().map(str),
    root=st.from_regex(r"(/[a-z]{1,12}){1,6}", fullmatch=True),
)
def test_every_answer_fits_and_stays_in_its_folder(driver: str, uid: str | None, root: str) -> None:
    shortest_dra = 3 if uid is None else 11
    shortest_registration = min(15, len(f"{driver}-reg.sock")) if uid is None else 15
    needed = max(
        len(f"{root}/plugins/{driver}/") + shortest_dra, len(f"{root}/plugins_registry/") + shortest_registration
    )
    if needed > MAX_SOCKET_PATH:
        with pytest.raises(SocketError, match="shorter"):
            paths(driver, uid, root)
        return
    chosen = paths(driver, uid, root)
    assert chosen.dra.parent == Path(root, "plugins", driver)
    assert chosen.registration.parent == Path(root, "plugins_registry")
    assert max(len(os.fsencode(path)) for path in (chosen.dra, chosen.registration)) <= MAX_SOCKET_PATH
    assert not chosen.registration.name.startswith("."), "the kubelet ignores hidden names"


@pytest.mark.bug("B131")
@pytest.mark.parametrize("uid", ["../x", "a/b", "", ".", "a" * 64, "x\n"])
def test_an_instance_uid_that_is_no_uid_is_refused(uid: str) -> None:
    with pytest.raises(SocketError, match="is not a pod UID"):
        paths("net.example.com", uid)


def test_relative_folders_are_refused() -> None:
    with pytest.raises(SocketError, match="plugins is not an absolute path"):
        socket_paths("net.example.com", Path("plugins"), REGISTRY, None)


@pytest.mark.bug("B133")
def test_a_private_folder_is_made_or_closed_for_others(root: Path) -> None:
    made, open_one, strict = root / "a/made", root / "open", root / "strict"
    open_one.mkdir()
    open_one.chmod(0o777)
    strict.mkdir()
    strict.chmod(0o700)
    for folder in (made, open_one, strict):
        make_folder(folder, private=True)
    assert [stat.S_IMODE(folder.stat().st_mode) for folder in (made, open_one, strict)] == [0o750, 0o750, 0o700]


def test_the_kubelets_own_folder_keeps_its_mode(root: Path) -> None:
    root.chmod(0o755)
    make_folder(root, private=False)
    assert stat.S_IMODE(root.stat().st_mode) == 0o755


def test_a_folder_that_is_a_file_is_named(root: Path) -> None:
    (root / "plugins").write_text("")
    with pytest.raises(SocketError, match=r"folder .*/plugins cannot be used: File exists; something .* move it away"):
        make_folder(root / "plugins", private=True)


def server() -> grpc.Server:
    return grpc.server(ThreadPoolExecutor(1))


def started(path: Path) -> tuple[grpc.Server, BoundSocket]:
    one = server()
    bound = bind_server(one, path)
    one.start()
    return one, bound


@pytest.mark.bug("B133")
def test_a_socket_is_its_owners_alone(root: Path) -> None:
    one, _ = started(root / "dra.sock")
    assert stat.S_IMODE((root / "dra.sock").stat().st_mode) == 0o600
    one.stop(0).wait()


def test_no_other_name_ever_appears_in_the_folder_and_no_descriptor_stays(root: Path) -> None:
    inode = root.stat().st_ino
    one, bound = started(root / "dra.sock")
    assert list(root.iterdir()) == [bound.path]
    held = [entry for entry in Path("/proc/self/fd").iterdir() if leads_to(int(entry.name), inode)]
    assert held == []
    one.stop(0).wait()
    assert list(root.iterdir()) == [bound.path], "gRPC must not find the socket, which may be another instance's by now"
    bound.remove()
    assert list(root.iterdir()) == []


def leads_to(descriptor: int, inode: int) -> bool:
    try:
        return os.fstat(descriptor).st_ino == inode
    except OSError:
        return False  # the descriptor that listed the folder is closed again


def test_a_stale_socket_is_replaced(root: Path) -> None:
    path = root / "dra.sock"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(os.fspath(path))
    assert not is_alive(path)
    one, _ = started(path)
    assert is_alive(path)
    one.stop(0).wait()


def test_a_file_that_is_no_socket_is_not_replaced(root: Path) -> None:
    path = root / "dra.sock"
    path.write_text("somebody's notes")
    with pytest.raises(SocketError, match=r"dra\.sock exists and is not a socket; move it away"):
        bind_server(server(), path)
    assert path.read_text() == "somebody's notes"
    assert list(root.iterdir()) == [path]


def test_the_first_of_two_instances_leaves_the_seconds_socket_alone(
    root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = root / "dra.sock"
    first, first_socket = started(path)
    second, second_socket = started(path)
    assert "another process still serves" in caplog.text
    first.stop(0).wait()
    first_socket.remove()
    assert is_alive(path)
    assert second_socket.is_ours()
    second.stop(0).wait()
    second_socket.remove()
    assert list(root.iterdir()) == []


def test_a_folder_that_is_missing_is_named_with_advice(root: Path) -> None:
    with pytest.raises(SocketError, match=r"/gone/dra.sock cannot be bound: No such file .*; check the hostPath mount"):
        bind_server(server(), root / "gone/dra.sock")


def test_an_address_that_the_kernel_refuses_is_named_with_advice(root: Path) -> None:
    with pytest.raises(SocketError, match=r"socket .* cannot be bound: .*check that"):
        bind_server(server(), root / ("n" * 200))


def test_what_the_kernel_has_against_a_socket_is_said_though_grpc_does_not(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_socket: socket.socket, _address: str) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    class Refusing(socket.socket):
        bind = refuse  # type: ignore[assignment]  # whatever the address

    monkeypatch.setattr("kubeletplugin.sockets.socket.socket", Refusing)
    one = server()
    monkeypatch.setattr(one, "add_insecure_port", lambda _address: (_ for _ in ()).throw(RuntimeError("see the log")))
    with pytest.raises(SocketError, match=r"dra.sock cannot be bound: Read-only file system; mount .* writable"):
        bind_server(one, root / "dra.sock")


def test_a_refusal_that_is_over_when_it_is_asked_about_leaves_no_socket(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = server()
    monkeypatch.setattr(one, "add_insecure_port", lambda _address: (_ for _ in ()).throw(RuntimeError("for a moment")))
    with pytest.raises(SocketError, match=r"cannot be bound: for a moment; check that .* is a writable folder"):
        bind_server(one, root / "dra.sock")
    assert list(root.iterdir()) == []


def test_nobody_listens_behind_nothing(root: Path) -> None:
    assert not is_alive(root / "none")


def test_a_successor_that_was_given_the_same_inode_number_keeps_its_socket(tmp_path: Path) -> None:
    path = tmp_path / "dra.sock"

    def bound() -> os.stat_result:
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(str(path))
        return path.lstat()

    first = bound()
    ours = BoundSocket(path, file_identity(first))
    path.unlink()
    successor = bound()
    while successor.st_mtime_ns == first.st_mtime_ns:  # the clock of the file system ticks in milliseconds
        path.unlink()
        successor = bound()
    if successor.st_ino != first.st_ino:
        pytest.skip("this file system does not give inode numbers out again")
    assert not ours.is_ours()
    ours.remove()
    assert path.exists()


def dead(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(path))
    return path


DRIVER_NAME = "gpu.nvidia.com"


@pytest.fixture
def short() -> Iterator[Path]:
    """A folder whose path leaves room for sockets: pytest's own carry the test's name."""
    with tempfile.TemporaryDirectory(prefix="k", dir="/tmp") as folder:
        yield Path(folder)


def paths_below(root: Path, uid: str | None) -> SocketPaths:
    return socket_paths(DRIVER_NAME, root / "plugins", root / "registry", uid)


@pytest.mark.parametrize("uid", [None, POD])
def test_without_a_dead_socket_the_names_stay(short: Path, uid: str | None) -> None:
    paths = paths_below(short, uid)
    assert fresh_paths(paths, DRIVER_NAME, uid) == paths


@pytest.mark.parametrize("uid", [None, POD])
def test_a_dead_registration_socket_gives_both_sockets_fresh_names(short: Path, uid: str | None) -> None:
    paths = paths_below(short, uid)
    dead(paths.registration)
    fresh = fresh_paths(paths, DRIVER_NAME, uid)
    assert fresh.registration != paths.registration
    assert fresh.dra != paths.dra
    assert fresh.registration.parent == paths.registration.parent
    assert fresh.registration.name.startswith(f"{DRIVER_NAME}-")
    assert fresh.registration.name.endswith("-reg.sock")
    assert fresh_paths(paths, DRIVER_NAME, uid) != fresh, "each start has a name of its own"


def test_a_socket_that_is_served_gives_no_reason_for_another_name(short: Path) -> None:
    paths = paths_below(short, None)
    paths.registration.parent.mkdir()
    with socket.socket(socket.AF_UNIX) as served:
        served.bind(str(paths.registration))
        served.listen()
        assert fresh_paths(paths, DRIVER_NAME, None) == paths


def test_names_that_leave_no_room_stay_as_they_are(short: Path) -> None:
    name = f"{DRIVER_NAME}-reg.sock"
    registry = short / ("r" * (MAX_SOCKET_PATH - len(os.fsencode(short)) - len(name) - 2))
    paths = socket_paths(DRIVER_NAME, short / "plugins", registry, None)
    assert paths.registration.name == name
    dead(paths.registration)
    assert fresh_paths(paths, DRIVER_NAME, None) == paths


@pytest.mark.parametrize("uid", [None, POD])
def test_what_killed_processes_of_this_instance_left_is_removed(short: Path, uid: str | None) -> None:
    paths = paths_below(short, uid)
    own = f"{uid}-" if uid else ""
    left = [
        dead(paths.registration),
        dead(paths.dra),
        dead(paths.registration.with_name(f"{DRIVER_NAME}-{own}0123abcd-reg.sock")),
        dead(paths.dra.with_name(f"dra-{own}0123abcd.sock")),
    ]
    remove_dead(paths, DRIVER_NAME, uid)
    assert not [path for path in left if path.exists()]


def test_sockets_of_others_stay_dead_or_alive(short: Path) -> None:
    paths = paths_below(short, POD)
    paths.dra.parent.mkdir(parents=True)
    other = "11111111-2222-3333-4444-555555555555"
    kept = [
        dead(paths.registration.with_name(f"{DRIVER_NAME}-{other}-reg.sock")),
        dead(paths.registration.with_name(f"{DRIVER_NAME}-{other}-0123abcd-reg.sock")),
        dead(paths.registration.with_name(f"{DRIVER_NAME}-reg.sock")),
        dead(paths.registration.with_name("nic.example.com-0123abcd-reg.sock")),
        dead(paths.dra.with_name(f"dra-{other}.sock")),
    ]
    with socket.socket(socket.AF_UNIX) as served:
        served.bind(str(paths.registration))
        served.listen()
        remove_dead(paths, DRIVER_NAME, POD)
        assert paths.registration.exists()
    assert all(path.exists() for path in kept)


def test_a_dead_socket_that_cannot_be_removed_is_told_and_keeps_nobody_from_serving(
    short: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    left = paths_below(short, None)
    for path in (left.registration, left.dra):
        dead(path)

    def refuse(_path: Path, *, missing_ok: bool = False) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", refuse)
        remove_dead(left, DRIVER_NAME, None)
    for path in (left.registration, left.dra):
        assert f"dead socket {path} cannot be removed: Permission denied; give the plugin write access" in caplog.text
    remove_dead(left, DRIVER_NAME, None)
    assert not any(path.exists() for path in (left.registration, left.dra))
