"""The agent installed as in the image: an environment of its own, nothing editable, byte code that is not checked.

The development environment finds the packages through a hook that itself takes a tenth of the way to the registration
socket, and looks at each source file before it believes the byte code. No user has that.
"""

from __future__ import annotations

import compileall
import py_compile
import shutil
import sys
import sysconfig
import venv
from importlib import metadata
from pathlib import Path

_REPOSITORY = Path(__file__).parents[2]
_PACKAGES = ("driver", "kubeletplugin", "native")
_DEPENDENCIES = ("cffi", "google", "grpc", "msgspec", "prometheus_client", "pyudev", "urllib3")
_LEFT_OUT = shutil.ignore_patterns("__pycache__", "mock", "csrc", "*.c")
_SCRIPT = """\
#!{python}
import sys
from driver.cli.main import main
sys.exit(main())
"""


def install(folder: Path) -> Path:
    """Install the working tree into ``folder``, which is made; gives its ``gpudra`` command.

    Dependencies are those of the environment that this runs in; they are compiled there.
    """
    venv.EnvBuilder(symlinks=True).create(folder)
    python = folder / "bin" / "python"
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    packages = folder / "lib" / version / "site-packages"
    for name in _PACKAGES:
        shutil.copytree(_REPOSITORY / name, packages / name, ignore=_LEFT_OUT)
    # The agent tells its version in its metrics.
    number = metadata.version("gpudra")
    described = packages / f"gpudra-{number}.dist-info"
    described.mkdir()
    (described / "METADATA").write_text(f"Metadata-Version: 2.1\nName: gpudra\nVersion: {number}\n")
    dependencies = sysconfig.get_path("purelib")
    (packages / "dependencies.pth").write_text(dependencies + "\n")
    for name in _DEPENDENCIES:  # as in the image: an installer may leave this to their first import, or to nobody
        compileall.compile_dir(Path(dependencies) / name, quiet=1)
    mode = py_compile.PycInvalidationMode.UNCHECKED_HASH
    compileall.compile_dir(packages, quiet=1, invalidation_mode=mode)
    command = folder / "bin" / "gpudra"
    command.write_text(_SCRIPT.format(python=python))
    command.chmod(0o755)
    return command
