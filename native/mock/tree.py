"""The fake root of a mock node: /proc, /dev, the driver's libraries and binaries, a CDI spec of nvidia-ctk's kind."""

from __future__ import annotations

import json
import os
import shutil
import stat
import uuid
from pathlib import Path
from typing import Any, Final

from native.mock import build, nodefile
from native.mock.boards import Gpu
from native.mock.profile import Profile
from native.mock.sysfs import SysTree

NODE_FILE: Final = Path("run/gpudra-mock/node")
"""Below the root; three folders up from it the library finds ``dev``. In a container it is mounted at the same path."""
PROFILE_FILE: Final = Path("run/gpudra-mock/profile.yaml")
CDI_FILE: Final = Path("etc/cdi/nvidia.json")
NVIDIA_MAJOR, UVM_MAJOR, CAPS_MAJOR, IMEX_MAJOR, DRM_MAJOR = 195, 510, 236, 235, 226
_CONTROL_NODES: Final = {
    "nvidiactl": (NVIDIA_MAJOR, 255),
    "nvidia-modeset": (NVIDIA_MAJOR, 254),
    "nvidia-uvm": (UVM_MAJOR, 0),
    "nvidia-uvm-tools": (UVM_MAJOR, 1),
}


def library_folder(profile: Profile) -> Path:
    """Where the driver's libraries lie, relative to the root: Debian's multiarch folder."""
    return Path("usr/lib") / f"{profile.host.architecture}-linux-gnu"


def write(root: Path, profile: Profile, profile_text: str, built: build.Built) -> None:
    """Write the whole root into an existing, empty folder.

    Raises:
        OSError: the file system refused.
    """
    SysTree(root / "sys", profile).write()
    _write_proc(root / "proc", profile)
    _write_driver(root, profile, built)
    _write_nodes(root / "dev", profile)
    node = root / NODE_FILE
    node.parent.mkdir(parents=True)
    node.write_bytes(nodefile.encode(profile))
    (root / PROFILE_FILE).write_text(profile_text, encoding="utf-8")
    write_cdi_spec(root, profile)


def _put(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{text}\n", encoding="utf-8")


def _write_proc(proc: Path, profile: Profile) -> None:
    driver = proc / "driver/nvidia"
    _put(driver / "version", _version(profile))
    for gpu in profile.gpus:
        _put(driver / "gpus" / gpu.address / "information", _information(gpu, profile))
    _put(driver / "capabilities/mig/config", _capability(1, 0o400))
    _put(driver / "capabilities/mig/monitor", _capability(2, 0o444))
    for gpu in profile.gpus:
        if gpu.numbers["mig_current"] >= 0:
            (driver / f"capabilities/gpu{gpu.numbers['minor']}/mig").mkdir(parents=True)
    _put(proc / "devices", _devices())
    total = sum(node.memory_mib for node in profile.host.numa) * 1024
    _put(
        proc / "meminfo", f"MemTotal:       {total:>8} kB\nMemFree:        {total:>8} kB\nMemAvailable:   {total:>8} kB"
    )
    write_boot_id(proc)


def write_boot_id(proc: Path) -> None:
    """A boot id that was never there before."""
    _put(proc / "sys/kernel/random/boot_id", str(uuid.uuid4()))


def write_versions(root: Path, profile: Profile) -> None:
    """The driver's version where the kernel module says it, in procfs and sysfs; of GPUs that are plugged in."""
    driver = root / "proc/driver/nvidia"
    _put(driver / "version", _version(profile))
    for gpu in profile.gpus:
        if (driver / "gpus" / gpu.address).is_dir():
            _put(driver / "gpus" / gpu.address / "information", _information(gpu, profile))
    _put(root / "sys/module/nvidia/version", profile.driver_version)


def _version(profile: Profile) -> str:
    machine = "x86_64" if profile.host.architecture == "x86_64" else "aarch64"
    return (
        f"NVRM version: NVIDIA UNIX Open Kernel Module for {machine}  {profile.driver_version}  Release Build  (mock)"
    )


def _information(gpu: Gpu, profile: Profile) -> str:
    rows = {
        "Model": gpu.texts["name"].value.decode(errors="replace"),
        "IRQ": "10",
        "GPU UUID": gpu.uuid,
        "Video BIOS": gpu.texts["vbios_version"].value.decode(errors="replace") or "??.??.??.??.??",
        "Bus Type": "PCIe",
        "DMA Size": "52 bits",
        "DMA Mask": "0xfffffffffffff",
        "Bus Location": gpu.address,
        "Device Minor": str(gpu.numbers["minor"]),
        "GPU Firmware": profile.driver_version,
        "GPU Excluded": "No",
    }
    return "\n".join(f"{name + ':':<17}{value}" for name, value in rows.items())


def _capability(minor: int, mode: int) -> str:
    return f"DeviceFileMinor: {minor}\nDeviceFileMode: {mode}\nDeviceFileModify: 1"


def _devices() -> str:
    rows = {
        NVIDIA_MAJOR: ("nvidia", "nvidiactl", "nvidia-modeset"),
        DRM_MAJOR: ("drm",),
        IMEX_MAJOR: ("nvidia-caps-imex-channels",),
        CAPS_MAJOR: ("nvidia-caps",),
        UVM_MAJOR: ("nvidia-uvm",),
    }
    lines = [f"{major:3d} {name}" for major, names in rows.items() for name in names]
    return "\n".join(["Character devices:", "  1 mem", *lines, "", "Block devices:", "  8 sd"])


def _write_driver(root: Path, profile: Profile, built: build.Built) -> None:
    write_libraries(root, profile, built)
    binaries = root / "usr/bin"
    binaries.mkdir(parents=True)
    for name in build.PROGRAMS:
        shutil.copy(built.programs / name, binaries / name)
        (binaries / name).chmod(0o755)
    (binaries / "nvidia-cuda-mps-server").symlink_to("nvidia-cuda-mps-control")  # its name tells it what to be


def write_libraries(root: Path, profile: Profile, built: build.Built) -> None:
    """The driver's libraries, in a folder that has none."""
    folder = root / library_folder(profile)
    folder.mkdir(parents=True, exist_ok=True)
    _install(built.library, folder, "libnvidia-ml.so", "libnvidia-ml.so.1", profile.driver_version)
    for name, soname in build.OTHER_LIBRARIES.items():
        _install(built.others / name, folder, name, soname, profile.driver_version)


def _install(source: Path, folder: Path, name: str, soname: str, version: str) -> None:
    """A copy and never a hard link: two roots in one process must be two libraries to dlopen, which goes by inode."""
    target = folder / f"{name}.{version}"
    shutil.copyfile(source, target)
    target.chmod(0o755)
    (folder / soname).symlink_to(target.name)
    if soname != name:
        (folder / name).symlink_to(soname)


def clear_capabilities(root: Path, profile: Profile) -> None:
    """Remove the capability files of all MIG instances, and their device nodes."""
    capabilities = root / "proc/driver/nvidia/capabilities"
    for gpu in profile.gpus:
        folder = capabilities / f"gpu{gpu.numbers['minor']}/mig"
        for instance in folder.iterdir() if folder.is_dir() else ():
            shutil.rmtree(instance)
    for node in (root / "dev/nvidia-caps").iterdir():
        if node.name not in ("nvidia-cap1", "nvidia-cap2"):
            node.unlink()


def _write_nodes(dev: Path, profile: Profile) -> None:
    dev.mkdir(parents=True)
    for name, (major, minor) in _CONTROL_NODES.items():
        make_node(dev / name, major, minor)
    (dev / "nvidia-caps").mkdir()
    for minor in (1, 2):
        make_node(dev / "nvidia-caps" / f"nvidia-cap{minor}", CAPS_MAJOR, minor)
    (dev / "dri").mkdir()
    if profile.host.iommu:
        (dev / "vfio").mkdir()
        make_node(dev / "vfio/vfio", 10, 196)
    for index, gpu in enumerate(profile.gpus):
        if gpu.numbers["minor"] >= 0:
            make_node(dev / f"nvidia{gpu.numbers['minor']}", NVIDIA_MAJOR, gpu.numbers["minor"])
        make_node(dev / "dri" / f"card{index + 1}", DRM_MAJOR, index + 1)
        make_node(dev / "dri" / f"renderD{128 + index}", DRM_MAJOR, 128 + index)


def make_node(path: Path, major: int, minor: int) -> None:
    """A character device; a plain file where this process may not make one (an unprivileged user, some sandboxes)."""
    try:
        os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(major, minor))
    except PermissionError:
        path.touch()
    path.chmod(0o666)


def write_cdi_spec(root: Path, profile: Profile) -> None:
    """Do what ``nvidia-ctk cdi generate`` does."""
    _put(root / CDI_FILE, json.dumps(cdi_spec(root, profile), indent=2))


def cdi_spec(root: Path, profile: Profile) -> dict[str, Any]:
    """What ``nvidia-ctk cdi generate`` would write on such a node, with host paths below ``root``.

    The common edits carry what the look-alike needs in a container, so a driver that takes its common edits from this
    spec needs to know nothing of a mock.
    """
    host = root.resolve()
    folder = library_folder(profile)
    files = [folder / f"{name}.{profile.driver_version}" for name in ("libnvidia-ml.so", *build.OTHER_LIBRARIES)]
    sonames = {"libnvidia-ml.so": "libnvidia-ml.so.1", **build.OTHER_LIBRARIES}
    pairs = [(file, Path("/") / file) for file in files]
    pairs += [(folder / soname, Path("/") / folder / soname) for soname in sonames.values()]
    pairs += [(Path("usr/bin") / name, Path("/usr/bin") / name) for name in (*build.PROGRAMS, "nvidia-cuda-mps-server")]
    options = ["ro", "nosuid", "nodev", "rbind", "rprivate"]
    mounts = [{"hostPath": str(host / file), "containerPath": str(to), "options": options} for file, to in pairs]
    # the library maps the node file shared and reads only; the mount is read-only like the others
    mounts.append({"hostPath": str(host / NODE_FILE), "containerPath": f"/{NODE_FILE}", "options": options})
    names = [str(gpu.numbers["minor"]) for gpu in profile.gpus if gpu.numbers["minor"] >= 0]
    devices = [{"name": name, "containerEdits": {"deviceNodes": [_node(host, f"nvidia{name}")]}} for name in names]
    everything = [_node(host, f"nvidia{name}") for name in names]
    if everything:
        devices.append({"name": "all", "containerEdits": {"deviceNodes": everything}})
    environment = ["NVIDIA_VISIBLE_DEVICES=void", f"GPUDRA_MOCK_NODE=/{NODE_FILE}", "GPUDRA_MOCK_DEV=/dev"]
    common = {"env": environment, "deviceNodes": [_node(host, name) for name in _CONTROL_NODES], "mounts": mounts}
    return {"cdiVersion": "0.5.0", "kind": "nvidia.com/gpu", "devices": devices, "containerEdits": common}


def _node(host: Path, name: str) -> dict[str, str]:
    return {"path": f"/dev/{name}", "hostPath": str(host / "dev" / name)}
