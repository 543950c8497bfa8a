"""Starts a program with a folder bound over another one, for that program alone.

A script of its own, because what it does (leave the mount namespace) cannot be taken back and must not happen to the
process that starts it: ``python -I launch.py --bind SOURCE:TARGET -- PROGRAM ARGUMENT...``. Needs CAP_SYS_ADMIN.
Uses the standard library only. Sources: unshare(2), mount(2), mount_namespaces(7).
"""

from __future__ import annotations

import ctypes
import os
import sys

_CLONE_NEWNS = 0x00020000
_MS_BIND = 0x1000
_MS_REC = 0x4000
_MS_PRIVATE = 0x40000
FAILED = 126
"""Exit code where the program was not started."""


def main(arguments: list[str]) -> int:
    """Bind, then become the program; returns only where that failed."""
    usage = len(arguments) < 4 or arguments[0] != "--bind" or arguments[2] != "--" or ":" not in arguments[1]
    if usage:
        print("usage: launch.py --bind SOURCE:TARGET -- PROGRAM [ARGUMENT...]", file=sys.stderr)
        return FAILED
    source, _, target = arguments[1].partition(":")
    try:
        bind(source, target)
        os.execv(arguments[3], arguments[3:])  # noqa: S606  becoming the program is the purpose
    except OSError as error:
        print(f"{error.filename or arguments[3]}: {error.strerror}", file=sys.stderr)
    return FAILED


def bind(source: str, target: str) -> None:
    """Leave the mount namespace and put ``source`` over ``target`` in the new one.

    Raises:
        OSError: not permitted (CAP_SYS_ADMIN), or one of the folders is not there.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    _check(libc.unshare(_CLONE_NEWNS), "unshare")
    # Mounts of the new namespace must not travel back into the old one.
    _check(libc.mount(b"none", b"/", None, ctypes.c_ulong(_MS_REC | _MS_PRIVATE), None), "/")
    _check(libc.mount(source.encode(), target.encode(), None, ctypes.c_ulong(_MS_BIND), None), f"{source} on {target}")


def _check(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), what)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
