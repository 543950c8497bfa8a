"""A YAML loader that takes plain data only and refuses a key that stands twice in one object."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import yaml


class StrictLoader(yaml.SafeLoader):
    """``yaml.SafeLoader``, but of two equal keys none is dropped silently."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        """The object, or ``ConstructorError`` with the line of the second key."""
        seen: set[str] = set()
        for key_node, _ in node.value:
            key = key_node.value if isinstance(key_node, yaml.ScalarNode) else None
            if key is not None and key in seen:
                raise yaml.constructor.ConstructorError(None, None, f"has the key {key!r} twice", key_node.start_mark)
            if key is not None and key != "<<":
                seen.add(key)
        return super().construct_mapping(node, deep=deep)
