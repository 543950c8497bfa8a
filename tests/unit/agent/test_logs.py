"""A log line is one JSON object, whatever the message holds, and carries its operation."""

from __future__ import annotations

import json
import logging
import sys

import pytest

from driver.logs import JsonFormatter, setup


def record(message: str, *args: object, **extra: object) -> logging.LogRecord:
    made = logging.getLogger("room").makeRecord(
        "room", logging.WARNING, "file.py", 1, message, args, None, extra=extra or None
    )
    made.created, made.msecs = 1700000000.25, 250.0
    return made


def test_a_line_names_time_level_logger_and_message() -> None:
    line = json.loads(JsonFormatter(lambda: None).format(record("GPU %s is lost", "0000:1b:00.0")))
    assert line == {
        "time": "2023-11-14T22:13:20.250Z",
        "level": "warning",
        "logger": "room",
        "message": "GPU 0000:1b:00.0 is lost",
    }


def test_the_operation_and_extras_stand_beside_the_message() -> None:
    line = json.loads(JsonFormatter(lambda: "p-7").format(record("prepared", claim="ns/c", devices=4)))
    assert (line["operation"], line["claim"], line["devices"]) == ("p-7", "ns/c", 4)


def test_an_extra_cannot_forge_the_time_or_the_level() -> None:
    forged = record("x")
    vars(forged)["time"] = "1970"
    vars(forged)["level"] = "debug"
    line = json.loads(JsonFormatter(lambda: None).format(forged))
    assert (line["time"], line["level"]) == ("2023-11-14T22:13:20.250Z", "warning")


@pytest.mark.bug("B131")
@pytest.mark.parametrize(
    "hostile",
    ["a\nb", "\x00\x1b[31m", '"}{"level":"error"', "\u2028", "\ud800"],
    ids=["newline", "controls", "quotes", "separator", "lone surrogate"],
)
def test_a_hostile_message_stays_one_line(hostile: str) -> None:
    text = JsonFormatter(lambda: None).format(record("%s", hostile, extra_text=hostile))
    assert len(text.splitlines()) == 1 or "\u2028" in text
    assert "\n" not in text
    assert json.loads(text)["level"] == "warning"


def test_an_exception_is_in_the_line_with_its_traceback() -> None:
    try:
        raise ValueError("bad slice")
    except ValueError:
        failed = logging.getLogger("room").makeRecord("room", 40, "f", 1, "failed", (), sys.exc_info())
    line = json.loads(JsonFormatter(lambda: None).format(failed))
    assert "ValueError: bad slice" in line["exception"]
    assert "Traceback" in line["exception"]


def test_values_that_json_does_not_know_are_written_as_text() -> None:
    line = json.loads(JsonFormatter(lambda: None).format(record("x", path=ValueError("boom"))))
    assert line["path"] == "boom"


def test_setup_replaces_what_was_there_and_honours_the_level(capsys: pytest.CaptureFixture[str]) -> None:
    root = logging.getLogger()
    before, level = root.handlers[:], root.level
    try:
        setup("warning")
        logging.getLogger("room").info("quiet")
        logging.getLogger("room").warning("loud")
        lines = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
        assert [line["message"] for line in lines] == ["loud"]
        assert len(root.handlers) == 1
    finally:
        root.handlers[:] = before
        root.setLevel(level)
