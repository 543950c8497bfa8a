"""The container image without a registry: ``python -m hack.image build --output image.tar``.

buildah builds the Dockerfile on a stand-in for ``python:3.13-slim``, which mmdebstrap makes from the machine's own
Debian mirror. Both are kept in ``${XDG_CACHE_HOME:-~/.cache}/gpudra/image``, under a hash of what they were made from.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
TAG = "localhost/gpudra:0.1.0"
SUITE = "trixie"
"""Debian 13, whose Python is 3.13."""
BASES: Mapping[str, tuple[str, ...]] = {
    "docker.io/library/python:3.13-slim": ("python3", "ca-certificates"),
    "localhost/python-build:3.13": (
        "python3-dev",
        "python3-venv",
        "python3-pip",
        "ca-certificates",
        "gcc",
        "libc6-dev",
    ),
}
"""Local image name -> Debian packages: what the image runs on, and what its parts are built on."""
RUNTIME_BASE, BUILD_BASE = BASES
INPUTS = ("Dockerfile", "pyproject.toml", "uv.lock", "setup.py", "MANIFEST.in", "LICENSE", "README.md",
          "driver", "native", "kubeletplugin")  # fmt: skip
CA_BUNDLE = Path("/etc/ssl/certs/ca-certificates.crt")
KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")


class ImageError(Exception):
    """The image cannot be built; the text says why and what helps."""


def cache_folder() -> Path:
    """Where archives and buildah's storage are kept."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "gpudra" / "image"


def build(output: Path) -> None:
    """Write the image as an OCI archive named ``TAG``.

    Raises:
        ImageError: a tool is missing or failed.
    """
    cache = cache_folder()
    cache.mkdir(parents=True, exist_ok=True)
    archive = cache / f"gpudra-{content_hash()}.tar"
    if not archive.exists():
        for tool in ("buildah", "mmdebstrap"):
            if shutil.which(tool) is None:
                raise ImageError(f"{tool} is missing: apt-get install --no-install-recommends buildah mmdebstrap")
        for name, packages in BASES.items():
            _ensure_base(cache, name, packages)
        _say("building the image")
        volume = f"{CA_BUNDLE}:{CA_BUNDLE}:ro"
        bases = ["--build-arg", f"BASE={RUNTIME_BASE}", "--build-arg", f"BUILD_BASE={BUILD_BASE}"]
        _buildah("build", "--layers", "--force-rm", "--volume", volume, *bases, "--tag", TAG, str(REPOSITORY))
        fresh = archive.with_suffix(".new")
        fresh.unlink(missing_ok=True)
        _buildah("push", TAG, f"oci-archive:{fresh}:{TAG}")
        for old in cache.glob("gpudra-*.tar"):
            old.unlink()
        fresh.replace(archive)
    shutil.copyfile(archive, output)


def content_hash() -> str:
    """Hash of every file that goes into the image, names included, and of the bases' recipes."""
    digest = hashlib.sha256(repr((SUITE, sorted(BASES.items()))).encode())
    for path in sorted(_input_files()):
        digest.update(str(path.relative_to(REPOSITORY)).encode() + b"\0")
        digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()[:16]


def _input_files() -> Iterator[Path]:
    for name in INPUTS:
        path = REPOSITORY / name
        for file in path.rglob("*") if path.is_dir() else [path]:
            if file.is_file() and "__pycache__" not in file.parts and file.suffix not in {".so", ".pyc"}:
                yield file


def _ensure_base(cache: Path, name: str, packages: tuple[str, ...]) -> None:
    """Make a base image unless buildah has it."""
    recipe = hashlib.sha256(repr((SUITE, packages)).encode()).hexdigest()[:16]
    marker = cache / f"base-{recipe}"
    if marker.exists() and _has_image(name):
        return
    _say(f"making {name} from Debian {SUITE}: {' '.join(packages)}")
    context = cache / f"context-{recipe}"
    context.mkdir(exist_ok=True)
    _run(["mmdebstrap", "--variant=minbase", f"--include={','.join(packages)}",
          "--customize-hook=rm -f $1/etc/apt/sources.list $1/etc/apt/sources.list.d/*",
          "--dpkgopt=path-exclude=/usr/share/doc/*", "--dpkgopt=path-exclude=/usr/share/man/*",
          SUITE, str(context / "rootfs.tar"), f"deb [signed-by={KEYRING}] {mirror()} {SUITE} main"])  # fmt: skip
    (context / "Dockerfile").write_text("FROM scratch\nADD rootfs.tar /\n")
    _buildah("build", "--tag", name, str(context))
    shutil.rmtree(context)
    marker.touch()


def mirror(apt: Path = Path("/etc/apt")) -> str:
    """The Debian mirror of this machine's apt; the public one where it has none."""
    for file in sorted(apt.glob("sources.list*")) + sorted(apt.glob("sources.list.d/*")):
        for line in file.read_text().splitlines() if file.is_file() else []:
            words = [word for word in line.split() if word.startswith(("http:", "https:"))]
            if not line.startswith("#") and words and words[0].rstrip("/").endswith("/debian"):
                return words[0]
    return "http://deb.debian.org/debian"


def _has_image(name: str) -> bool:
    done = subprocess.run([*_buildah_command(), "inspect", "--type", "image", name], capture_output=True, check=False)
    return done.returncode == 0


def _buildah(*arguments: str) -> None:
    # chroot isolation needs neither a runtime nor cgroups of its own.
    _run([*_buildah_command(), *arguments], {"BUILDAH_ISOLATION": "chroot", "STORAGE_DRIVER": "overlay"})


def _buildah_command() -> list[str]:
    storage = cache_folder() / "storage"
    # In a mount namespace of its own: buildah leaves mounts of its storage behind.
    private = ["unshare", "--mount", "--propagation=private"]
    return [*private, "buildah", "--root", str(storage / "root"), "--runroot", str(storage / "run")]


def _run(command: list[str], environment: Mapping[str, str] | None = None) -> None:
    done = subprocess.run(command, env=os.environ | (environment or {}), capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise ImageError(f"{' '.join(command)} failed:\n{(done.stdout + done.stderr)[-4000:]}")


def _say(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m hack.image", description="The agent's container image.")
    verbs = parser.add_subparsers(dest="verb", required=True)
    verb = verbs.add_parser("build", help=f"build {TAG} and write it as an OCI archive")
    verb.add_argument("--output", type=Path, default=Path("image.tar"), help="(default: %(default)s)")
    arguments = parser.parse_args()
    try:
        build(arguments.output)
    except ImageError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(f"{TAG} is in {arguments.output}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
