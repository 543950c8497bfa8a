"""Targets: the agent's own files, its settings, and the journal."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from driver import settings, statefile
from driver.health.keeper import Keeper, Policy
from driver.health.remembered import Album
from driver.health.store import HealthStore
from driver.idle import Stored, Use, read_book
from driver.inventory.filters import Selector, parse_selectors, parse_shares
from driver.journal import reader, records, state, telling
from driver.prepare.errors import ClaimError
from driver.prepare.sharing import DEBTS_FILE
from driver.prepare.sharing.debts import VALUES, Debts
from tests.fuzz.engine import Target
from tests.fuzz.fuzztools import as_text, written

_BOOT = "b"
_RECORDS = [
    records.Record(
        1, "2026-01-31T12:00:00Z", 1, _BOOT, "state", data={"claims": {"u": {"phase": "Prepared"}}, "devices": {}}
    ),
    records.Record(
        2, "2026-01-31T12:00:01Z", 2, _BOOT, "device.health", device="gpu-0", data={"before": "healthy", "after": "x"}
    ),
    records.Record(
        3,
        "2026-01-31T12:00:02Z",
        3,
        _BOOT,
        "claim.prepare",
        claim=records.ClaimId("n", "c", "u"),
        data={"phase": "Prepared", "devices": ["gpu-0"], "seconds": 0.1},
    ),
    records.Record(
        4, "2026-01-31T12:00:03Z", 4, _BOOT, "device.taint", device="gpu-0", data={"key": "k", "after": "v:NoSchedule"}
    ),
    records.Record(
        5, "2026-01-31T12:00:04Z", 5, _BOOT, "mig.create", device="gpu-0", data={"instance": "1/0", "uuid": "MIG-1"}
    ),
    records.Record(6, "2026-01-31T12:00:05Z", 6, _BOOT, "xid", device="gpu-0", data={"code": 79, "count": 2}),
]
_LINES = [records.encode(record) for record in _RECORDS]
_HEALTH = (
    b'{"version":1,"boot":"b","gpus":{"0000:1b:00.0":{"standing":[{"finding":{"cause":"xid","severity":4,"message":"m",'
    b'"xid":79},"since":1.0,"seen":1.0,"count":1}]}}}'
)


def _resealed(data: bytes) -> bytes:
    """The line with a checksum that is right, so that what is inside is reached."""
    return records._seal(data.rstrip(b"\n")[: -records._SEAL_BYTES] + b"}")


def _line(data: bytes, _folder: Path) -> None:
    try:
        record = records.decode(data.rstrip(b"\n"))
    except records.LineError:
        record = records.decode(_resealed(data).rstrip(b"\n"))
    state.replay([record])
    telling.Query(since=datetime(2026, 1, 1, tzinfo=UTC), devices=("gpu-*",), claims=("c",)).wants(record)
    telling.line(record)


def _journal(data: bytes, folder: Path) -> None:
    written(folder, "journal-00000000000000000001.jsonl", data)
    state.replay(entry for entry in reader.read(folder) if isinstance(entry, records.Record))


def _quiet(read: Callable[[bytes, Path], Any]) -> Callable[[bytes, Path], None]:
    """What is unusable is logged and nothing comes of it."""
    return lambda data, folder: read(data, folder)


def _health(data: bytes, folder: Path) -> None:
    keeper = Keeper(Policy(), boot_id=_BOOT)
    written(folder, "health.json", data)
    HealthStore(folder).load(keeper)
    keeper.dump()


def _keeper(data: bytes, _folder: Path) -> None:
    keeper = Keeper(Policy(), boot_id=_BOOT)
    keeper.load(data)
    keeper.essence()
    keeper.dump()


def _stored_use() -> bytes:
    names = {field.name: field for field in msgspec.structs.fields(Use)}
    sample: dict[type, object] = {str: "x", float: 1.0, int: 1, bool: True}
    values = {name: sample.get(field.type) for name, field in names.items() if field.required}
    return msgspec.json.encode(Stored(1, _BOOT, 1.0, [Use(**values)]))  # type: ignore[arg-type] # as its fields say


def _settings(data: bytes, folder: Path) -> None:
    settings.load({"node_name": "node-a"}, {}, written(folder, "config.json", data))


def _variables(data: bytes, _folder: Path) -> None:
    name, _, value = as_text(data).partition("=")
    settings.load({"node_name": "node-a"}, {settings.ENVIRONMENT_PREFIX + name.upper(): value})


def _debts(data: bytes, folder: Path) -> None:
    for debt in Debts(written(folder, DEBTS_FILE, data), lambda: _BOOT).all():
        assert debt.former in VALUES[debt.setting]


TARGETS = (
    Target("journal line", _line, (records.LineError,), _LINES, ("driver.journal.records:decode",)),
    Target("journal file", _journal, (), [b"".join(_LINES)], ("driver.journal.reader:read",)),
    Target(
        "time of a query",
        lambda data, _: telling.parse_time(as_text(data), datetime(2026, 1, 31, tzinfo=UTC)),
        (telling.QueryError,),
        [b"2026-01-31T12:00:00Z", b"30m", b"3d"],
        ("driver.journal.telling:parse_time",),
    ),
    Target(
        "what is owed to GPUs",
        _debts,
        (ClaimError,),
        [
            b'{"debts":[{"uuid":"G","address":"a","setting":"timeSlice","former":"0","given":"3","bootID":"b"}]}',
            b'{"debts":[{"uuid":"GPU-0","address":"a","setting":"later","bootID":"b"},{"bootID":"c"}]}',
        ],
    ),
    Target("health state", _keeper, (ValueError,), [_HEALTH], ("driver.health.keeper:Keeper.load",)),
    Target("health file", _health, (), [_HEALTH], ("driver.health.store:HealthStore.load",)),
    Target(
        "remembered node",
        lambda data, folder: (written(folder, "node.json", data), Album(folder, _BOOT).load()),
        (),
        [b'{"boot":"c","node":{}}'],
        ("driver.health.remembered:Album.load",),
    ),
    Target(
        "idle book",
        lambda data, folder: read_book(written(folder, "idle.json", data)),
        (),
        [_stored_use()],
        ("driver.idle:read_book",),
    ),
    Target(
        "state file",
        lambda data, folder: statefile.read(written(folder, "f.json", data), 1000),
        (),
        [b"{}"],
        ("driver.statefile:read",),
    ),
    Target(
        "settings file",
        _settings,
        (settings.SettingsError,),
        [b'{"mig":"dynamic","rescanSeconds":5,"allowDevices":"*","shares":"{\\"*\\":4}"}'],
        ("driver.settings:load",),
    ),
    Target(
        "settings variable",
        _variables,
        (settings.SettingsError,),
        [b"mig=static", b'shares={"index=0":4}', b"deny_devices=model=NVIDIA L4*,0000:1b:00.0", b"evict=fatal"],
        ("driver.settings:load",),
    ),
    Target(
        "device selectors",
        lambda data, _: parse_selectors(as_text(data)),
        (ValueError,),
        [b"model=NVIDIA A100*,index=3,0000:1b:00.0", b"GPU-1ebfe2e6-70b8-5691-8704-4b506c590168", b"*"],
        ("driver.inventory.filters:parse_selectors", "driver.inventory.filters:Selector.parse"),
    ),
    Target(
        "one selector",
        lambda data, _: Selector.parse(as_text(data)),
        (ValueError,),
        [b"index=3"],
        ("driver.inventory.filters:Selector.parse",),
    ),
    Target(
        "shares",
        lambda data, _: parse_shares(as_text(data)),
        (ValueError,),
        [b'{"model=NVIDIA L4*": 4, "index=7": 2}'],
        ("driver.inventory.filters:parse_shares",),
    ),
    Target("list setting", lambda data, _: settings.listed(as_text(data)), (), [b"a, b"], ("driver.settings:listed",)),
)
