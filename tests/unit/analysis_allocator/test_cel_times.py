"""Timestamps and durations of expressions: read, written, moved, and taken apart in a zone."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfoNotFoundError

import pytest
from hypothesis import given
from hypothesis import strategies as st

from driver.analysis.cel import EvaluationError, UnsupportedError, compile_selector, times
from driver.analysis.cel.times import SECOND, Civil, Duration, Timestamp

MOMENTS = st.datetimes(min_value=datetime(1, 1, 2), max_value=datetime(9999, 12, 30), timezones=st.just(UTC))
MIDDLE = st.datetimes(min_value=datetime(300, 1, 1), max_value=datetime(9700, 1, 1), timezones=st.just(UTC))
"""So far from both ends of the calendar that no duration reaches them."""
SPANS = st.integers(-(2**63), 2**63 - 1)
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def nanos(moment: datetime) -> int:
    since = moment - EPOCH
    return (since.days * times.DAY + since.seconds) * SECOND + since.microseconds * 1000


@given(MOMENTS)
def test_a_time_is_read_as_pythons_calendar_reads_it(moment: datetime) -> None:
    assert times.timestamp(moment.isoformat()).nanos == nanos(moment)


@given(MOMENTS)
def test_the_parts_of_a_date_are_those_of_pythons_calendar(moment: datetime) -> None:
    found = times.parts(Timestamp(nanos(moment)))
    assert (found.year, found.month, found.day) == (moment.year, moment.month, moment.day)
    assert (found.hour, found.minute, found.second) == (moment.hour, moment.minute, moment.second)
    assert found.day_of_year == moment.timetuple().tm_yday - 1
    assert found.day_of_week == moment.isoweekday() % 7


@given(MOMENTS, st.integers(-23 * 60, 23 * 60))
def test_a_time_that_is_written_and_read_again_is_the_same_in_the_same_zone(moment: datetime, minutes: int) -> None:
    time = Timestamp(nanos(moment), minutes * 60)
    again = times.timestamp(str(time))
    assert (again, again.offset) == (time, time.offset)


@given(SPANS)
def test_a_duration_that_is_written_out_in_nanoseconds_is_read_exactly(length: int) -> None:
    assert times.duration(f"{length}ns") == Duration(length)


@given(st.integers(-(10**15), 10**15))
def test_a_duration_that_is_written_and_read_again_is_the_same(length: int) -> None:
    """Up to some days: beyond, Go's own floating point text of it loses nanoseconds."""
    assert times.duration(str(Duration(length))) == Duration(length)


@given(MIDDLE, SPANS)
def test_a_time_moved_and_moved_back_is_where_it_was(moment: datetime, length: int) -> None:
    start = Timestamp(nanos(moment), 3600)
    there = times.moved(start, length)
    assert times.moved(there, -length) == start
    assert there.offset == start.offset


@given(MOMENTS)
def test_a_time_does_not_leave_the_calendar(moment: datetime) -> None:
    for nanoseconds in (-(10**20) * 4, 10**20 * 4):
        with pytest.raises(EvaluationError, match="timestamp overflow"):
            times.moved(Timestamp(nanos(moment)), nanoseconds)


@pytest.mark.parametrize(
    "text",
    ["2020-02-30T00:00:00Z", "2021-02-29T00:00:00Z", "2020-00-01T00:00:00Z", "2020-13-01T00:00:00Z", "2020-01-01",
     "2020-01-01T24:00:00Z", "2020-01-01T00:60:00Z", "2020-01-01T00:00:60Z", "2020-01-01 00:00:00Z",
     "2020-01-01T00:00Z",
     "2020-01-01T00:00:00", "2020-01-01T00:00:00.Z", "2020-01-01T00:00:00+25:00", "2020-01-01T00:00:00+00:61",
     "0000-12-31T22:59:59-01:00", "9999-12-31T23:59:59-00:01", "x", "", "２020-01-01T00:00:00Z"],
)  # fmt: skip
def test_what_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(EvaluationError):
        times.timestamp(text)


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("2020-01-01T1:02:03Z", "2020-01-01T01:02:03Z"),
        ("2020-01-01T01:02:03,5Z", "2020-01-01T01:02:03.5Z"),
        ("2020-01-01T01:02:03.1234567891234Z", "2020-01-01T01:02:03.123456789Z"),
        ("2020-01-01T01:02:03-00:00", "2020-01-01T01:02:03Z"),
        ("2020-01-01T01:02:03+24:60", "2020-01-01T01:02:03+25:00"),
        ("0000-12-31T23:59:59-01:00", "0000-12-31T23:59:59-01:00"),
    ],
)
def test_times_are_read_as_leniently_as_go_reads_them(text: str, written: str) -> None:
    assert str(times.timestamp(text)) == written


def test_a_year_that_only_a_zone_leads_to_has_five_digits_or_a_sign() -> None:
    assert str(times.moved(times.timestamp("9999-12-31T23:00:00+23:00"), 2 * 3600 * SECOND)).startswith("10000-01-01")
    assert Civil(times.from_seconds(-62135596800).seconds - 367 * times.DAY).year == -1


@pytest.mark.parametrize(
    "text", ["", "1", "1d", "s", ".s", "1s1", " 1s", "1 s", "--1s", "+", "1h-1m", "9223372036854775808ns"]
)
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(EvaluationError, match="invalid duration"):
        times.duration(text)


@pytest.mark.parametrize(
    ("text", "length"),
    [("0", 0), ("-0", 0), ("1h1h", 7200 * SECOND), (".5s", SECOND // 2), ("5.s", 5 * SECOND), ("1µs1μs1us", 3000),
     ("-9223372036854775808ns", -(2**63)), ("1.99999999999999999999s", 2 * SECOND), ("+1ms", 10**6)],
)  # fmt: skip
def test_durations_are_read_with_every_unit_and_fraction(text: str, length: int) -> None:
    assert times.duration(text).nanos in (length, length - 1)


@pytest.mark.parametrize("nanoseconds", [1, SECOND // 3, 90 * 60 * SECOND, -90 * 60 * SECOND, 2**63 - 1, -(2**63)])
def test_units_of_a_duration_are_rounded_towards_zero(nanoseconds: int) -> None:
    for unit in (10**6, SECOND, 60 * SECOND, 3600 * SECOND):
        whole = abs(nanoseconds) // unit
        assert times.units(unit)(Duration(nanoseconds)) in (whole, -whole, whole + 1, -whole - 1)
    assert times.units(60 * SECOND)(Duration(-90 * SECOND)) == -1


@given(MOMENTS, st.integers(-14, 14))
def test_an_offset_moves_the_clock_by_so_many_hours(moment: datetime, hours: int) -> None:
    found = times.parts(Timestamp(nanos(moment)), f"{hours:+03d}:00")
    try:
        assert found.hour == (moment + timedelta(hours=hours)).hour
    except OverflowError:
        assert found.year in (0, 10000)


@pytest.mark.parametrize(
    ("zone", "hour"),
    [
        ("", 12),
        ("UTC", 12),
        ("Europe/Berlin", 14),
        ("America/New_York", 8),
        ("-08:00", 4),
        ("5:30", 17),
        ("-00:30", 11),
    ],
)
def test_zones_have_names_and_offsets(zone: str, hour: int) -> None:
    assert times.parts(times.timestamp("2020-07-01T12:00:00Z"), zone).hour == hour


@pytest.mark.parametrize("year", ["0001-01-01T00:00:00Z", "9999-12-31T23:59:59Z"])
def test_a_zone_is_known_at_the_ends_of_time(year: str) -> None:
    assert times.parts(times.timestamp(year), "Asia/Tokyo").year in (1, 10000)


@pytest.mark.parametrize(
    "zone", ["Nowhere/Land", "europe/berlin", "../etc/passwd", "/etc", "America", "x:00", "1:x", ":", "1:"]
)
def test_a_zone_that_does_not_exist_is_an_error(zone: str) -> None:
    with pytest.raises(EvaluationError):
        times.parts(Timestamp(0), zone)


@pytest.mark.parametrize("zone", ["Local", "99999999999:00"])
def test_a_zone_that_only_the_scheduler_knows_is_told_apart_from_wrong(zone: str) -> None:
    with pytest.raises(UnsupportedError):
        times.parts(Timestamp(0), zone)


def test_without_a_time_zone_database_a_zone_is_unknown_rather_than_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise ZoneInfoNotFoundError(name)

    times._zone.cache_clear()
    times._has_database.cache_clear()
    monkeypatch.setattr(times, "ZoneInfo", missing)
    with pytest.raises(UnsupportedError, match="no time zone database"):
        times.parts(Timestamp(0), "Europe/Berlin")
    monkeypatch.undo()
    times._has_database.cache_clear()
    assert times.parts(Timestamp(0), "Europe/Berlin").hour == 1


@pytest.mark.parametrize(
    ("expression", "release", "kind"),
    [
        ("duration(int(device.driver.size())) == duration('1s')", 36, EvaluationError),
        ("timestamp(device.driver) == timestamp(1)", 37, EvaluationError),
        ("timestamp(1) + duration('9223372036s') + duration('9223372036s') < timestamp(1)", 37, None),
    ],
)
def test_what_fails_only_on_a_device_is_an_error_of_the_run(
    expression: str, release: int, kind: type[EvaluationError] | None
) -> None:
    device = {"driver": "d.io", "attributes": {}, "capacity": {}, "allowMultipleAllocations": False}
    program = compile_selector(expression, release)
    if kind is None:
        assert program.matches(device) is False
        return
    with pytest.raises(kind):
        program.matches(device)
