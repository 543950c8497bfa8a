"""The values that cross the rooms of the driver: what a node has, as frozen data.

Nothing here talks to hardware or to Kubernetes, and nothing here is imported from the rest of the project.
Units are bytes, MHz and MiB only where a name says so; addresses are PCI addresses in the kernel's notation.
``None`` always means "not known on this node", never zero and never -1.
"""

from __future__ import annotations

import enum
import functools
import re

import msgspec

_PCI_ADDRESS = re.compile(r"\A([0-9a-fA-F]{4,8}):([0-9a-fA-F]{2}):([0-9a-fA-F]{2})\.([0-7])\Z")


class PciAddress(msgspec.Struct, frozen=True, order=True):
    """A PCI function: domain, bus, device and function as numbers.

    ``str()`` gives the kernel's spelling (``0000:1b:00.0``: lower case, a domain of four digits, more only where the
    value needs them, as on VMD: ``10000:01:00.0``).
    """

    domain: int
    bus: int
    device: int
    function: int

    @classmethod
    def parse(cls, text: str) -> PciAddress:
        """Read ``dddd:bb:dd.f`` in either case, with the domain in 4 to 8 digits (NVML prints eight, upper case).

        Raises:
            ValueError: the text is no PCI address; the message quotes it.
        """
        match = _PCI_ADDRESS.match(text)
        if match is None:
            raise ValueError(f"{text!r} is not a PCI address (expected for example 0000:1b:00.0)")
        domain, bus, device, function = (int(part, 16) for part in match.groups())
        if device > 0x1F:
            raise ValueError(f"{text!r} is not a PCI address: device {device:#x} is above 0x1f")
        return cls(domain, bus, device, function)

    def __str__(self) -> str:
        return _spelling(self.domain, self.bus, self.device, self.function)[0]

    @property
    def label(self) -> str:
        """The address as part of a DNS label: ``0000-1b-00-0``."""
        return _spelling(self.domain, self.bus, self.device, self.function)[1]


@functools.lru_cache(maxsize=1024)
def _spelling(domain: int, bus: int, device: int, function: int) -> tuple[str, str]:
    """As the kernel writes it, and as a label: kept, for a GPU is looked up by its name several times in each call."""
    text = f"{domain:04x}:{bus:02x}:{device:02x}.{function:x}"
    return text, text.replace(":", "-").replace(".", "-")


class GpuState(enum.Enum):
    """What can be said of a GPU as a whole at the time of a snapshot."""

    READY = "ready"
    LOST = "lost"
    """The bus sees it, NVML says it is gone (GPU_IS_LOST, XID 79)."""
    WEDGED = "wedged"
    """A call about it did not come back in time."""
    UNREADABLE = "unreadable"
    """NVML answered, but not with what a device needs (no UUID)."""
    UNBOUND = "unbound"
    """The bus sees it, no driver of NVIDIA's is bound to it (vfio-pci, or none)."""


class MemoryKind(enum.Enum):
    """Where a GPU's memory lives, and so what its size means."""

    DEDICATED = "dedicated"
    COHERENT = "coherent"
    """Own memory, which the host sees as a NUMA node of its own (Grace)."""
    UNIFIED = "unified"
    """Shared with the host (GB10, Jetson); the size is the host's MemTotal, or unknown."""


class EccMode(msgspec.Struct, frozen=True):
    """ECC now, and after the next reset."""

    current: bool
    pending: bool


class MigSupport(enum.StrEnum):
    """What the driver does with MIG."""

    OFF = "off"
    """Whole GPUs only; one in MIG mode is withheld."""
    STATIC = "static"
    """Partitions that somebody else makes are handed out as they are found."""
    DYNAMIC = "dynamic"
    """Partitions are made for claims and destroyed with them."""


class MigMode(msgspec.Struct, frozen=True):
    """MIG mode now, and after the next reset. ``None`` instead of this object: the board has no MIG."""

    current: bool
    pending: bool


class NvLinkLink(msgspec.Struct, frozen=True):
    """One NVLink of a GPU."""

    index: int
    active: bool
    version: str | None
    """The generation as NVIDIA writes it ("4.0"), not NVML's enum value."""
    remote: PciAddress | None
    remote_kind: str
    """``gpu``, ``switch``, ``npu`` or ``unknown``."""


class NvLinkGroup(msgspec.Struct, frozen=True):
    """GPUs of this node that reach each other over NVLink."""

    index: int
    """Groups are numbered from 0 in the order of their lowest member address."""
    members: tuple[PciAddress, ...]


class Fabric(msgspec.Struct, frozen=True):
    """The NVLink fabric (MNNVL) that a GPU has joined; meaningful only once registration completed."""

    cluster_uuid: str
    clique_id: int

    @property
    def clique(self) -> str:
        """``<cluster uuid>.<clique id>``: a clique id means something only inside its cluster."""
        return f"{self.cluster_uuid}.{self.clique_id}"


class Placement(msgspec.Struct, frozen=True, order=True):
    """A run of slices: memory slices of a GPU for a partition, compute slices of a partition for a part of it."""

    start: int
    size: int

    @property
    def end(self) -> int:
        """The first slice behind it."""
        return self.start + self.size

    def overlaps(self, other: Placement) -> bool:
        """Whether both have a slice in common."""
        return self.start < other.end and other.start < self.end


ENGINES = ("multiprocessors", "copy_engines", "decoders", "encoders", "jpeg_engines", "ofa_engines")
"""The fields of ``MigProfile`` that count what partitions share out, memory apart."""


class MigProfile(msgspec.Struct, frozen=True):
    """A MIG profile as NVML describes it for one board."""

    profile_id: int
    name: str
    """As NVIDIA writes it: ``1g.10gb+me``."""
    placements: tuple[Placement, ...]
    """Every legal one, in use or not, in the order of their starts."""
    instance_count: int
    """How many fit on an empty GPU."""
    memory_bytes: int
    multiprocessors: int
    copy_engines: int
    decoders: int
    encoders: int
    jpeg_engines: int
    ofa_engines: int
    compute_slices: int = 0
    graphics: bool = False
    """Whether programs that draw can run in it (``+gfx``)."""


class MigPartition(msgspec.Struct, frozen=True):
    """A MIG device that stands on a GPU: a compute instance, which as a rule is all of its GPU instance."""

    uuid: str | None
    """Opaque: drivers before R470 spell it ``MIG-GPU-<uuid>/gi/ci``. None where it is not usable."""
    gpu_instance: int
    compute_instance: int | None
    """None for a GPU instance without one: it occupies its place, and nothing can run on it."""
    profile_id: int
    """Of the GPU instance."""
    profile: str
    """``3g.40gb``; ``1c.3g.40gb`` for a part of one."""
    placement: Placement
    """Of the GPU instance, in memory slices."""
    memory_bytes: int | None = None
    multiprocessors: int | None = None
    copy_engines: int | None = None
    decoders: int | None = None
    encoders: int | None = None
    jpeg_engines: int | None = None
    ofa_engines: int | None = None
    compute: Placement | None = None
    """Its compute slices within the GPU instance, where it is only a part of it."""
    graphics: bool = False
    gi_minor: int | None = None
    """N of /dev/nvidia-caps/nvidia-capN that opens the GPU instance; None where the kernel does not tell."""
    ci_minor: int | None = None
    """The same for the compute instance. A container needs both."""
    managed: bool = False
    """Made by this driver for a claim; all others are somebody else's and never destroyed."""

    @property
    def usable(self) -> bool:
        """Whether programs can run on it."""
        return self.uuid is not None and self.compute_instance is not None


class Passthrough(msgspec.Struct, frozen=True):
    """A GPU is offered to virtual machines."""

    product_name: str | None = None
    """As NVML told it when it last saw the GPU: a bound one is none of its."""
    iommufd: bool = False
    """Whether the kernel offers IOMMUFD."""


class Gpu(msgspec.Struct, frozen=True):
    """One GPU: its identity, its place in the machine, and what its driver says of it."""

    address: PciAddress
    state: GpuState
    reason: str | None = None
    """Why ``state`` is not READY: the call, its return code and what to do, in one sentence."""
    unread: tuple[str, ...] = ()
    """Fields below that NVML refused to tell now although it may know them: what stands there says nothing."""
    # identity
    uuid: str | None = None
    product_name: str | None = None
    brand: str | None = None
    architecture: str | None = None
    serial: str | None = None
    board_part_number: str | None = None
    vbios_version: str | None = None
    pci_device_id: int | None = None
    """Vendor in the low 16 bits, device in the high ones, as NVML packs it."""
    pci_subsystem_id: int | None = None
    minor: int | None = None
    """N of /dev/nvidiaN. May change with a MIG toggle or a rebind: never part of a name."""
    module_id: int | None = None
    index: int | None = None
    """Which GPU of its node it is, from 0 in the order of PCI addresses. Another one has it when a GPU is taken out:
    never part of a name."""
    # capability
    cuda_compute_capability: tuple[int, int] | None = None
    memory_bytes: int | None = None
    memory_kind: MemoryKind = MemoryKind.DEDICATED
    memory_numa_node: int | None = None
    """On coherent systems the NUMA node that the GPU's own memory forms."""
    addressing_mode: str | None = None
    ecc: EccMode | None = None
    mig: MigMode | None = None
    mig_profiles: tuple[MigProfile, ...] = ()
    """What the board can be divided into, by profile id; empty where the driver does not tell (before Hopper it does
    only while MIG mode is on)."""
    partitions: tuple[MigPartition, ...] = ()
    """The MIG devices that stand on it, in the order of their places."""
    partitions_known: bool = True
    """False: NVML did not tell all that stands on it. ``partitions`` may lack some, and nothing follows from that."""
    mig_settled: bool = True
    """False: somebody was changing the partitions while they were read; read again soon."""
    compute_mode: str | None = None
    persistence_mode: bool | None = None
    virtualization_mode: str | None = None
    # place
    driver: str | None = None
    """Name of the kernel driver bound to it."""
    pcie_root: str | None = None
    """``pci0000:66``: the root complex, as resource.kubernetes.io/pcieRoot."""
    switch_path: tuple[PciAddress, ...] = ()
    """The bridges from the root port (first) to the GPU's own port (last)."""
    numa_node: int | None = None
    local_cpulist: str | None = None
    iommu_group: int | None = None
    drm_nodes: tuple[str, ...] = ()
    """``card5``, ``renderD132``."""
    pcie_link_generation: int | None = None
    """The highest that the board and its slot agree on."""
    pcie_link_width: int | None = None
    # fabric
    nvlinks: tuple[NvLinkLink, ...] = ()
    nvlink_group: int | None = None
    """Index into ``NodeInventory.nvlink_groups``; None without an active link to a GPU of this node or a switch."""
    fabric: Fabric | None = None
    # offer
    shares: int | None = None
    """In how many shares it is offered to several claims at the same time; None: to one claim."""
    passthrough: Passthrough | None = None
    """Not None: it is offered as a device of the type ``vfio`` too, whatever driver it has now."""

    @property
    def name(self) -> str:
        """The device name: from the PCI address, which survives reboots, MIG toggles and the loss of a sibling."""
        return f"gpu-{self.address.label}"

    @property
    def mig_enabled(self) -> bool:
        """Whether MIG mode is on."""
        return self.mig is not None and self.mig.current

    @property
    def switches_mig_freely(self) -> bool:
        """Whether MIG mode can be switched without a reset of the GPU, as NVIDIA's MIG guide says since Hopper."""
        return self.mig is not None and self.architecture not in (None, "Ampere")

    def profile(self, profile_id: int) -> MigProfile | None:
        """The profile with that id, if the board has it."""
        return next((profile for profile in self.mig_profiles if profile.profile_id == profile_id), None)

    @property
    def nvlink_count(self) -> int:
        """Number of active links."""
        return sum(link.active for link in self.nvlinks)


class Nic(msgspec.Struct, frozen=True):
    """A network device that stands beside GPUs on the PCIe tree."""

    address: PciAddress
    interfaces: tuple[str, ...]
    """Names under /sys/class/net."""
    rdma_devices: tuple[str, ...]
    """Names under /sys/class/infiniband."""
    pcie_root: str | None
    switch_path: tuple[PciAddress, ...]
    numa_node: int | None
    is_virtual_function: bool = False


class NumaNode(msgspec.Struct, frozen=True):
    """A NUMA node as the kernel numbers it."""

    index: int
    cpulist: str
    """Empty for a node of memory only (a GPU's, on coherent systems)."""
    memory_bytes: int | None
    distances: tuple[int, ...]
    """ACPI SLIT distances to the nodes in ascending order of their index; empty where unknown."""


class Problem(msgspec.Struct, frozen=True):
    """Something about the node that a person should know: it names the thing, the fault and the remedy."""

    subject: str
    """A PCI address, a path or ``node``."""
    message: str


class NodeInventory(msgspec.Struct, frozen=True):
    """Everything of one machine that matters for placing work on its GPUs, taken in one go."""

    driver_version: str | None
    """Raw, as NVML prints it ("580.105.08")."""
    cuda_driver_version: tuple[int, int] | None
    nvml_version: str | None
    gpus: tuple[Gpu, ...]
    """In ascending order of their addresses; those that are not READY too."""
    nics: tuple[Nic, ...] = ()
    numa_nodes: tuple[NumaNode, ...] = ()
    nvlink_groups: tuple[NvLinkGroup, ...] = ()
    problems: tuple[Problem, ...] = ()
    mock: bool = False
    """The library behind this inventory is a look-alike."""
    boot_id: str | None = None
    gpus_known: bool = True
    """False: ``gpus`` may lack some, for what a function of the bus is could not be read. Nothing follows from that."""

    def gpu(self, name: str) -> Gpu | None:
        """The GPU with this device name, if the node has it."""
        return next((gpu for gpu in self.gpus if gpu.name == name), None)

    def at(self, address: str) -> Gpu | None:
        """The GPU at this PCI address (the kernel's spelling), if the node has it."""
        return next((gpu for gpu in self.gpus if str(gpu.address) == address), None)


class DeviceNode(msgspec.Struct, frozen=True):
    """A device file as a container will need it."""

    path: str
    """Where it stands for a program that sees the device root as ``/`` ("/dev/nvidia0")."""
    host_path: str
    """Where it stands on the host (differs where the driver root is not ``/``)."""
    major: int | None = None
    """None where it must be looked up by the runtime: a major number may change with a driver reload."""
    minor: int | None = None


class DriverFiles(msgspec.Struct, frozen=True):
    """What of the driver's user-space a container gets: found once per driver version."""

    libraries: tuple[tuple[str, str], ...] = ()
    """(host path of the real file, path in the container)."""
    binaries: tuple[tuple[str, str], ...] = ()
