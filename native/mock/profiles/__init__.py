"""The profiles that come with the mock, by name; see README.md here for the schema."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from native.mock import profile

DEFAULT: Final = "dgx-h100"
_FOLDER: Final = Path(__file__).parent


def names() -> list[str]:
    """The names that ``load`` knows, sorted."""
    return sorted(path.stem for path in _FOLDER.glob("*.yaml"))


def text(source: str | Path) -> str:
    """The YAML of a profile: a name of ``names()``, or the path of a file.

    Raises:
        FileNotFoundError: neither; the message lists the names.
    """
    path = Path(source)
    if isinstance(source, str) and source in names():
        path = _FOLDER / f"{source}.yaml"
    elif not path.is_file():
        raise FileNotFoundError(f"{source} is neither a file nor a known profile: {', '.join(names())}")
    return path.read_text(encoding="utf-8")


def load(source: str | Path = DEFAULT) -> profile.Profile:
    """Read and check a profile.

    Raises:
        FileNotFoundError: neither a known name nor a file.
        native.mock.pcie.ProfileError: the profile is wrong; names the field.
    """
    return profile.load(source)
