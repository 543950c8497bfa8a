"""A tree of short lines for a terminal: in colour where rich is installed and somebody looks, plain text otherwise."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TextIO


@dataclass(slots=True)
class Branch:
    """One line and what hangs below it."""

    text: str
    style: str = ""
    """A style of rich ("bold", "red"); plain output has none."""
    children: list[Branch] = field(default_factory=list)

    def add(self, text: str, style: str = "") -> Branch:
        """Hang a line below this one."""
        child = Branch(text, style)
        self.children.append(child)
        return child


def show(root: Branch, stream: TextIO | None = None) -> None:
    """Print the tree. Guides are ASCII where the stream's encoding has no box characters."""
    stream = sys.stdout if stream is None else stream
    if stream.isatty() and _show_rich(root, stream):
        return
    encoding = stream.encoding or "ascii"
    for line in plain(root, ascii_only=not _can_encode("├─└│", encoding)):
        stream.write(line.encode(encoding, "replace").decode(encoding) + "\n")


def plain(root: Branch, *, ascii_only: bool = False) -> Iterator[str]:
    """The tree as lines of text."""
    guides = ("|- ", "`- ", "|  ", "   ") if ascii_only else ("├─ ", "└─ ", "│  ", "   ")
    yield root.text
    yield from _below(root, "", guides)


def _below(branch: Branch, prefix: str, guides: tuple[str, str, str, str]) -> Iterator[str]:
    tee, elbow, bar, blank = guides
    for child in branch.children:
        last = child is branch.children[-1]
        yield prefix + (elbow if last else tee) + child.text
        yield from _below(child, prefix + (blank if last else bar), guides)


def _can_encode(text: str, encoding: str) -> bool:
    try:
        text.encode(encoding)
    except (UnicodeEncodeError, LookupError):
        return False
    return True


def _show_rich(root: Branch, stream: TextIO) -> bool:
    try:
        from rich.console import Console
        from rich.text import Text
        from rich.tree import Tree
    except ImportError:
        return False

    def build(branch: Branch) -> Tree:
        tree = Tree(Text(branch.text, style=branch.style), guide_style="dim")
        tree.children.extend(build(child) for child in branch.children)
        return tree

    # The terminal wraps what is too long for it; rich would cut it off, and a reason that is cut helps nobody.
    width = max(map(len, plain(root))) * 2 + 1
    Console(file=stream, width=width, highlight=False).print(build(root))
    return True
