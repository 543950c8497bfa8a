"""Which of a node's GPUs are offered, and in how many shares: settings applied to an inventory. Pure.

A selector names GPUs: a UUID (``GPU-...``), a PCI address, ``model=NVIDIA A100*`` (shell wildcards, in any letter
case), ``index=3`` (GPUs counted in the order of their PCI addresses, as nvidia-smi counts them), or ``*`` for all.
"""

from __future__ import annotations

import fnmatch
import json
import re
from collections.abc import Mapping
from typing import Final

import msgspec

from driver.model import Gpu, NodeInventory, Passthrough, PciAddress, Problem

ALL: Final = "*"
MAX_SHARES: Final = 256
_UUID = re.compile(r"\AGPU-[0-9a-fA-F-]{4,64}\Z")
_INDEX = re.compile(r"\A[0-9]{1,3}\Z")


class Selector(msgspec.Struct, frozen=True):
    """Names some of a node's GPUs."""

    text: str
    uuid: str | None = None
    address: PciAddress | None = None
    model: str | None = None
    index: int | None = None

    @classmethod
    def parse(cls, text: str) -> Selector:
        """Read a selector.

        Raises:
            ValueError: it is none; the message shows what there is.
        """
        text = text.strip()
        key, equals, value = text.partition("=")
        if text == ALL:
            return cls(text)
        if equals and key == "model" and value:
            return cls(text, model=value.casefold())
        if equals and key == "index" and _INDEX.match(value):
            return cls(text, index=int(value))
        if _UUID.match(text):
            return cls(text, uuid=text.casefold())
        try:
            return cls(text, address=PciAddress.parse(text))
        except ValueError:
            raise ValueError(
                f"{text!r} names no GPUs: use a UUID (GPU-...), a PCI address (0000:1b:00.0), model=NVIDIA A100*, "
                "index=3 or *"
            ) from None

    def matches(self, gpu: Gpu, index: int) -> bool:
        """Whether it names this GPU, which is the ``index``-th of its node."""
        if self.uuid is not None:
            return gpu.uuid is not None and gpu.uuid.casefold() == self.uuid
        if self.address is not None:
            return gpu.address == self.address
        if self.model is not None:
            return fnmatch.fnmatchcase((gpu.product_name or "").casefold(), self.model)
        return self.index is None or index == self.index


def parse_selectors(text: str) -> tuple[Selector, ...]:
    """Selectors separated by commas; none for an empty text.

    Raises:
        ValueError: as ``Selector.parse``.
    """
    return tuple(Selector.parse(part) for part in text.split(",") if part.strip())


def parse_shares(text: str) -> tuple[tuple[Selector, int], ...]:
    """A JSON object of selector -> number of shares: ``{"model=NVIDIA L4*": 4, "index=7": 2}``; the first that names a
    GPU counts. 1 means that the GPU is not shared.

    Raises:
        ValueError: no such object, or a number that cannot be one of shares.
    """
    if not text.strip():
        return ()
    try:
        table = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"is no JSON: {error}") from error
    if not isinstance(table, dict):
        raise ValueError('must be a JSON object such as {"model=NVIDIA L4*": 4}')  # noqa: TRY004  a setting's fault
    shares = []
    for key, count in table.items():
        if not isinstance(count, int) or isinstance(count, bool) or not 1 <= count <= MAX_SHARES:
            raise ValueError(f"{key}: must be a number of shares from 1 to {MAX_SHARES}, is {count!r}")
        shares.append((Selector.parse(key), count))
    return tuple(shares)


class Policy(msgspec.Struct, frozen=True):
    """What the settings say."""

    allow: tuple[Selector, ...] = ()
    """Empty: all GPUs."""
    deny: tuple[Selector, ...] = ()
    """Wins over ``allow``."""
    withhold_displays: bool = False
    withhold_held: bool = False
    shares: tuple[tuple[Selector, int], ...] = ()
    passthrough: tuple[Selector, ...] = ()
    """GPUs for virtual machines."""

    def is_passed_through(self, gpu: Gpu, index: int) -> bool:
        """Whether a GPU is for virtual machines."""
        return any(selector.matches(gpu, index) for selector in self.passthrough)

    def share_count(self, gpu: Gpu, index: int) -> int | None:
        """In how many shares a GPU is offered; None for one that is not shared."""
        found = next((count for selector, count in self.shares if selector.matches(gpu, index)), 1)
        return found if found > 1 else None


class Usage(msgspec.Struct, frozen=True):
    """Who uses a GPU beside the claims."""

    display: str | None = None
    """The connector of a monitor that hangs on it."""
    holders: tuple[str, ...] = ()
    """Processes of the host that hold it open ("Xorg (pid 812)"); only of GPUs that no claim has."""


class Offered(msgspec.Struct, frozen=True):
    """What of a node is offered."""

    inventory: NodeInventory
    """With the GPUs that are offered, and how many shares each has."""
    withheld: tuple[Problem, ...]
    """One for each of the others: its device name, and why."""


def offered(inventory: NodeInventory, policy: Policy, usage: Mapping[PciAddress, Usage] | None = None) -> Offered:
    """Apply the settings to an inventory.

    Args:
        inventory: the whole node; indices count its GPUs. One that is marked for passthrough stays so.
        policy: the settings.
        usage: who uses which GPU; asked only where the policy withholds GPUs for that.
    """
    kept = []
    withheld = []
    for index, gpu in enumerate(inventory.gpus):
        reason = _reason(gpu, index, policy, (usage or {}).get(gpu.address, Usage()))
        if reason is not None:
            withheld.append(Problem(gpu.name, reason))
            continue
        if gpu.passthrough is None and policy.is_passed_through(gpu, index):
            gpu = msgspec.structs.replace(gpu, passthrough=Passthrough(gpu.product_name))  # noqa: PLW2901  the same GPU
        shares = None if gpu.passthrough is not None else policy.share_count(gpu, index)
        kept.append(gpu if shares == gpu.shares else msgspec.structs.replace(gpu, shares=shares))
    if not withheld and kept == list(inventory.gpus):
        return Offered(inventory, ())
    return Offered(msgspec.structs.replace(inventory, gpus=tuple(kept)), tuple(withheld))


def _reason(gpu: Gpu, index: int, policy: Policy, usage: Usage) -> str | None:
    denied = next((selector for selector in policy.deny if selector.matches(gpu, index)), None)
    if denied is not None:
        return f"setting denyDevices names it ({denied.text})"
    if policy.allow and not any(selector.matches(gpu, index) for selector in policy.allow):
        return "setting allowDevices does not name it"
    if policy.withhold_displays and usage.display is not None:
        return f"a monitor is connected to it ({usage.display}), and setting displayGpus withholds such GPUs"
    if policy.withhold_held and usage.holders:
        shown = ", ".join(usage.holders[:3])
        return f"processes of the host use it ({shown}), and setting heldGpus withholds such GPUs until they end"
    return None
