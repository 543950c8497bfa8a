"""Container images without a registry: one layer with static busybox, as an OCI archive.

The same content serves as the pause image (it only has to sleep) and as the image of test pods. It holds no C library:
what a container runs of the driver must be static or come with its own. Manifests that were written for other images
run on it too: ``bash`` is there, and a stand-in for the program of NVIDIA's CUDA samples.
"""

from __future__ import annotations

import hashlib
import io
import json
import platform
import subprocess
import tarfile
from pathlib import Path
from typing import Any

from .components import PAUSE_IMAGE

BUSYBOX = Path("/bin/busybox")
TEST_IMAGE = "localhost/gpudra-test:1"
_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
_STAND_INS = {
    "bin/bash": b'#!/bin/sh\nexec /bin/sh "$@"\n',
    # In place of a computation: says which GPUs and which MPS daemon it would use.
    "tmp/sample": b"""#!/bin/sh
nvidia-smi -L
env | grep -E '^(CUDA|GPUDRA)_' | sort
[ -z "$CUDA_MPS_PIPE_DIRECTORY" ] || echo get_default_active_thread_percentage | nvidia-cuda-mps-control
echo running
exec sleep 2147483647
""",
}
_PASSWD = b"root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/sh\n"


def write_archive(path: Path) -> None:
    """Write an OCI archive (image-layout 1.0.0) with both names to ``path``."""
    layer = busybox_layer()
    with tarfile.open(path, "w") as archive:
        digest_of = _Blobs(archive)
        layer_entry = digest_of.add(layer, "application/vnd.oci.image.layer.v1.tar")
        config = {
            "architecture": _ARCHITECTURES[platform.machine()],
            "os": "linux",
            "config": {"Env": ["PATH=/usr/local/bin:/usr/bin:/bin"], "Cmd": ["sleep", "2147483647"]},
            "rootfs": {"type": "layers", "diff_ids": [layer_entry["digest"]]},
        }
        config_entry = digest_of.add(_json(config), "application/vnd.oci.image.config.v1+json")
        manifest = {
            "schemaVersion": 2,
            "mediaType": "application/vnd.oci.image.manifest.v1+json",
            "config": config_entry,
            "layers": [layer_entry],
        }
        entry = digest_of.add(_json(manifest), "application/vnd.oci.image.manifest.v1+json")
        named = [entry | {"annotations": {"io.containerd.image.name": name}} for name in (PAUSE_IMAGE, TEST_IMAGE)]
        _add(archive, "index.json", _json({"schemaVersion": 2, "manifests": named}))
        _add(archive, "oci-layout", _json({"imageLayoutVersion": "1.0.0"}))


def busybox_layer() -> bytes:
    """The file system as an uncompressed tar: /bin with busybox and its applets, and the folders a shell expects."""
    applets = subprocess.run([str(BUSYBOX), "--list"], check=True, capture_output=True, text=True).stdout.split()
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as layer:
        for name, mode in (("bin", 0o755), ("etc", 0o755), ("root", 0o700), ("tmp", 0o1777), ("usr", 0o755),
                           ("usr/bin", 0o755), ("usr/lib", 0o755), ("proc", 0o555), ("sys", 0o555),
                           ("dev", 0o755)):  # fmt: skip
            folder = tarfile.TarInfo(name)
            folder.type, folder.mode = tarfile.DIRTYPE, mode
            layer.addfile(folder)
        _add(layer, "bin/busybox", BUSYBOX.read_bytes(), mode=0o755)
        _add(layer, "etc/passwd", _PASSWD)
        for name, script in _STAND_INS.items():
            _add(layer, name, script, mode=0o755)
        for applet in sorted(set(applets) - {"busybox"}):
            link = tarfile.TarInfo(f"bin/{applet}")
            link.type, link.linkname = tarfile.SYMTYPE, "busybox"
            layer.addfile(link)
    return buffer.getvalue()


class _Blobs:
    """Content-addressed files of the archive."""

    def __init__(self, archive: tarfile.TarFile) -> None:
        self._archive = archive

    def add(self, content: bytes, media_type: str) -> dict[str, Any]:
        digest = hashlib.sha256(content).hexdigest()
        _add(self._archive, f"blobs/sha256/{digest}", content)
        return {"mediaType": media_type, "digest": f"sha256:{digest}", "size": len(content)}


def _add(archive: tarfile.TarFile, name: str, content: bytes, mode: int = 0o644) -> None:
    info = tarfile.TarInfo(name)
    info.size, info.mode = len(content), mode
    archive.addfile(info, io.BytesIO(content))


def _json(value: object) -> bytes:
    return json.dumps(value, sort_keys=True).encode()
