"""What the board says of devices' health, when, and for how long. Time is moved by hand."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kubeletplugin.api import DeviceHealth, HealthStatus, NullObserver
from kubeletplugin.health import MAX_MESSAGE_BYTES, Devices, HealthBoard, HealthStream, cut_message

HEALTHY, UNHEALTHY, UNKNOWN = HealthStatus.HEALTHY, HealthStatus.UNHEALTHY, HealthStatus.UNKNOWN


class Silences(NullObserver):
    def __init__(self) -> None:
        self.told: list[tuple[str, int]] = []

    def health_stale(self, source: str, *, devices: int, seconds: float) -> None:
        self.told.append((source, devices))


class Scene:
    """A board under a clock of its own, and one stream whose next message is always being waited for."""

    def __init__(self, threads: ThreadPoolExecutor) -> None:
        self.now = 1000.0
        self.observer = Silences()
        self.board = HealthBoard(self.observer, clock=lambda: self.now)
        self.threads = threads
        self.streams: list[HealthStream] = []

    def listen(self) -> HealthStream:
        self.streams.append(self.board.stream())
        return self.streams[-1]

    def advance(self, seconds: float) -> None:
        with self.board._changed:
            self.now += seconds
            self.board._changed.notify_all()

    def ask(self, stream: HealthStream) -> Future[Devices | None]:
        return self.threads.submit(stream.next)


@pytest.fixture
def scene() -> Iterator[Scene]:
    with ThreadPoolExecutor(8) as threads:
        scene = Scene(threads)
        yield scene
        for stream in scene.streams:
            stream.close()


def device(name: str = "eth1", status: HealthStatus = HEALTHY, message: str = "", timeout: int = 30) -> DeviceHealth:
    return DeviceHealth("pool", name, status, message, timeout_seconds=timeout)


def words(devices: Devices | None) -> dict[str, HealthStatus]:
    return {one.device: one.status for one in devices or ()}


def is_silent(future: Future[Devices | None]) -> bool:
    """A short look: the thread had every chance to say something."""
    try:
        future.result(0.05)
    except TimeoutError:
        return True
    return False


def test_before_the_first_report_there_is_nothing_to_say(scene: Scene) -> None:
    waiting = scene.ask(scene.listen())
    assert is_silent(waiting)
    scene.board.report([device()])
    assert words(waiting.result(5)) == {"eth1": HEALTHY}


@pytest.mark.bug("B111")
def test_a_new_stream_begins_with_the_whole_list(scene: Scene) -> None:
    scene.board.report([device("eth1"), device("eth2", UNHEALTHY, "no link")])
    for _ in range(3):
        first = scene.listen().next()
        assert words(first) == {"eth1": HEALTHY, "eth2": UNHEALTHY}
        assert first is not None
        assert first[1].message == "no link"


def test_a_report_without_devices_is_an_empty_list(scene: Scene) -> None:
    scene.board.report([])
    assert scene.listen().next() == ()


def test_changes_in_quick_succession_travel_together(scene: Scene) -> None:
    stream = scene.listen()
    scene.board.report([device()])
    stream.next()
    waiting = scene.ask(stream)
    for status in (UNHEALTHY, HEALTHY, UNHEALTHY):
        scene.board.report([device(status=status)])
    assert is_silent(waiting), "too soon after the last message"
    scene.advance(0.2)
    assert words(waiting.result(5)) == {"eth1": UNHEALTHY}
    assert is_silent(scene.ask(stream)), "one message for three changes"


def test_a_slow_reader_gets_the_newest_list_only(scene: Scene) -> None:
    stream = scene.listen()
    scene.board.report([device()])
    stream.next()
    for number in range(50):
        scene.board.report([device(message=f"round {number}")])
        scene.advance(1)
    latest = stream.next()
    assert latest is not None
    assert latest[0].message == "round 49"
    assert is_silent(scene.ask(stream))


def test_a_check_that_finds_nothing_new_is_a_heartbeat_only_when_one_is_due(scene: Scene) -> None:
    stream = scene.listen()
    scene.board.report([device(timeout=30)])
    stream.next()
    waiting = scene.ask(stream)
    for _ in range(9):
        scene.advance(1)
        scene.board.report([device(timeout=30)])
    assert is_silent(waiting), "nothing new, and the kubelet's word is good for long"
    scene.advance(1)
    assert words(waiting.result(5)) == {"eth1": HEALTHY}, "a third of the timeout is over and the check is alive"


@pytest.mark.bug("B111")
def test_without_a_check_there_is_no_heartbeat(scene: Scene) -> None:
    stream = scene.listen()
    scene.board.report([device(timeout=30)])
    stream.next()
    waiting = scene.ask(stream)
    scene.advance(29)
    assert is_silent(waiting), "repeating the list would vouch for a check that may hang"


@pytest.mark.bug("B111")
def test_a_silent_check_makes_its_devices_unknown(scene: Scene) -> None:
    stream = scene.listen()
    scene.board.report([device(timeout=30)], source="nvlink")
    stream.next()
    waiting = scene.ask(stream)
    scene.advance(30)
    said = waiting.result(5)
    assert said is not None
    assert said[0].status is UNKNOWN
    assert said[0].message == ("health check nvlink has not answered for more than 30 s; its last word was Healthy")
    assert scene.observer.told == [("nvlink", 1)]
    scene.advance(100)
    assert words(scene.board.current()) == {"eth1": UNKNOWN}
    assert scene.observer.told == [("nvlink", 1)], "told once"


def test_a_check_that_comes_back_is_believed(scene: Scene) -> None:
    stream = scene.listen()
    scene.board.report([device()])
    stream.next()
    scene.advance(40)
    assert words(stream.next()) == {"eth1": UNKNOWN}
    scene.board.report([device()])
    scene.advance(1)
    assert words(stream.next()) == {"eth1": HEALTHY}
    scene.advance(31)
    stream.next()
    assert scene.observer.told == [("", 1), ("", 1)], "each silence is news"


def test_one_hanging_check_takes_only_its_own_devices_with_it(scene: Scene) -> None:
    scene.board.report([device("eth1")], source="a")
    scene.board.report([device("eth2")], source="b")
    scene.advance(20)
    scene.board.report([device("eth1")], source="a")
    scene.advance(15)
    assert words(scene.board.current()) == {"eth1": HEALTHY, "eth2": UNKNOWN}


def test_each_device_has_its_own_patience(scene: Scene) -> None:
    scene.board.report([device("fast", timeout=5), device("slow", timeout=60)])
    scene.advance(10)
    assert words(scene.board.current()) == {"fast": UNKNOWN, "slow": HEALTHY}


def test_the_worse_word_counts_where_two_checks_know_a_device(scene: Scene) -> None:
    for first, second, result in (
        (HEALTHY, UNHEALTHY, UNHEALTHY),
        (UNKNOWN, HEALTHY, UNKNOWN),
        (UNKNOWN, UNHEALTHY, UNHEALTHY),
    ):
        for one, other in ((first, second), (second, first)):
            scene.board.report([device(status=one)], source="a")
            scene.board.report([device(status=other)], source="b")
            assert words(scene.board.current()) == {"eth1": result}


def test_a_device_that_is_no_longer_reported_is_no_longer_listed(scene: Scene) -> None:
    scene.board.report([device("eth1"), device("eth2")])
    scene.board.report([device("eth2")])
    assert words(scene.board.current()) == {"eth2": HEALTHY}


def test_a_check_can_be_retired(scene: Scene) -> None:
    scene.board.report([device("eth1")], source="a")
    scene.board.report([device("eth2")], source="b")
    scene.board.retire("a")
    scene.board.retire("never there")
    assert words(scene.board.current()) == {"eth2": HEALTHY}


def test_closing_ends_a_stream_that_waits(scene: Scene) -> None:
    stream = scene.listen()
    waiting = scene.ask(stream)
    stream.close()
    stream.close()
    assert waiting.result(5) is None
    assert stream.next() is None


@pytest.mark.parametrize("timeout", [0, -1])
def test_a_timeout_below_a_second_is_refused(scene: Scene, timeout: int) -> None:
    with pytest.raises(ValueError, match="below 1"):
        scene.board.report([device(timeout=timeout)])


def test_a_device_named_twice_is_refused_and_changes_nothing(scene: Scene) -> None:
    scene.board.report([device()])
    with pytest.raises(ValueError, match="twice"):
        scene.board.report([device(), device(status=UNHEALTHY)])
    assert words(scene.board.current()) == {"eth1": HEALTHY}


@given(st.text())
def test_a_message_is_cut_on_a_character_and_stays_valid(text: str) -> None:
    for message in (text, text * 200, "ü" * 2000):
        cut = cut_message(message)
        data = cut.encode()
        assert len(data) <= MAX_MESSAGE_BYTES
        whole = message.encode("utf-8", "replace").decode()
        assert cut == whole or (cut.endswith("...") and whole.startswith(cut.removesuffix("...")))


def test_a_long_message_is_cut_in_the_report(scene: Scene) -> None:
    scene.board.report([device(message="x" * 5000)])
    (said,) = scene.board.current()
    assert said.message == "x" * 1021 + "..."


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["a", "b"]), st.dictionaries(st.sampled_from("xyz"), st.integers(1, 60)), st.floats(0, 90)
        ),
        min_size=1,
        max_size=12,
    )
)
def test_nothing_is_said_to_be_well_that_no_check_vouches_for_now(
    steps: list[tuple[str, dict[str, int], float]],
) -> None:
    now = 0.0
    board = HealthBoard(clock=lambda: now)
    last: dict[str, tuple[float, dict[str, int]]] = {}
    for source, devices, pause in steps:
        board.report([device(name, timeout=seconds) for name, seconds in devices.items()], source=source)
        last[source] = now, devices
        now += pause
        said = words(board.current())
        assert said.keys() == {name for _, known in last.values() for name in known}
        for name, status in said.items():
            vouched = [now - at < known[name] for at, known in last.values() if name in known]
            assert (status is HEALTHY) is all(vouched)
