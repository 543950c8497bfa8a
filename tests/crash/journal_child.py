"""Writes a journal as fast as it can, and says on its standard output what is in the file: to be killed."""

from __future__ import annotations

import sys
from pathlib import Path

from driver.journal import Journal, Kind


def main() -> None:
    folder, start = Path(sys.argv[1]), int(sys.argv[2])
    out = sys.stdout
    journal = Journal(
        folder,
        boot_id="boot",
        max_bytes=512 * 1024,
        written=lambda record: print(record.data["n"], file=out, flush=True) if record.kind == "xid" else None,
    )
    journal.start()
    number = start
    while True:
        journal.record(Kind.XID, device="gpu-0", data={"n": number, "text": "x" * 200})
        number += 1
        if number % 64 == 0:
            journal.settled(10)


if __name__ == "__main__":
    main()
