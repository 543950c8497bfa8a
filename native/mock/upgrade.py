"""Another version of the driver on a mock node, as its installer leaves it.

The old libraries are removed: whoever has them mapped, or mounted in a container, keeps them, and a CDI specification
that names them names nothing until ``nvidia-ctk cdi generate`` makes another one.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from native.mock import build, profile, tree
from native.mock.profile import Profile

_VERSION: Final = re.compile(r"[0-9]{1,4}(\.[0-9]{1,4}){1,3}", re.ASCII)


def install(root: Path, old: Profile, version: str) -> Profile:
    """Replace libraries, texts and CDI specification; gives the node's new profile, which is kept there too.

    Args:
        root: the node's folder.
        old: what stands there.
        version: as NVIDIA writes it: 580.126.09.

    Raises:
        ValueError: ``version`` is none, or the one that is installed.
        BuildError: no C compiler, or it failed.
    """
    if not _VERSION.fullmatch(version):
        raise ValueError(f"{version!r} is no version of a driver, as 580.126.09 is one")
    if version == old.driver_version:
        raise ValueError(f"the driver is {version} already")
    import yaml

    kept = root / tree.PROFILE_FILE
    document = yaml.safe_load(kept.read_text(encoding="utf-8"))
    document["driver"]["version"] = version
    text = yaml.safe_dump(document, sort_keys=False, width=120)
    new = profile.parse(document)
    built = build.build(new.absent)
    folder = root / tree.library_folder(old)
    for library in (*folder.glob("*.so"), *folder.glob("*.so.*")):
        library.unlink()
    tree.write_libraries(root, new, built)
    tree.write_versions(root, new)
    kept.write_text(text, encoding="utf-8")
    return new
