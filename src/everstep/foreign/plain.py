"""Inert values to plain ones: dicts, lists, numbers and text, with `Stored` where tensors are.

A pickle of a hundred bytes can describe a tree of 2**60 nodes, or one that contains itself; so nodes and the boxes of
tensors are counted.
"""

from dataclasses import dataclass

from everstep.errors import Damaged
from everstep.foreign.found import Plain, Stored
from everstep.foreign.inert import ElementType, Global, Record, TensorRef, Unknown
from everstep.foreign.saved import Saved

DEPTH_MAX = 100
NODES_FREE = 100_000
NAMESPACES = frozenset({"Namespace", "SimpleNamespace", "LossScaler", "DynamicLossScaler", "fragment_address"})


@dataclass(frozen=True, slots=True)
class Opaque:
    """Something that has no plain form; `what` names it."""

    what: str


Tree = None | bool | int | float | str | Stored | Opaque | list["Tree"] | dict[str | int, "Tree"]


def tree(saved: Saved, value: object) -> Tree:
    """A value of the archive's tree, plain."""
    return _Walk(saved, NODES_FREE + saved.pickle_bytes).plain(value, 0)


class _Walk:
    def __init__(self, saved: Saved, nodes_max: int) -> None:
        self._saved, self._left = saved, nodes_max

    def plain(self, value: object, depth: int) -> Tree:
        self._left -= 1
        if self._left < 0 or depth > DEPTH_MAX:
            raise Damaged(f"{self._saved.path}: describes a tree without end. Do not use this file.")
        if value is None or isinstance(value, bool | int | float | str):
            return value
        if isinstance(value, list | tuple):
            return [self.plain(item, depth + 1) for item in value]
        if isinstance(value, dict):
            return self._mapping(value, depth)
        if isinstance(value, TensorRef):
            stored = self._saved.stored(value)
            self._left -= len(stored.parts)
            return stored
        if isinstance(value, Record) and value.kind in NAMESPACES:
            return {key: self.plain(item, depth + 1) for key, item in value.fields.items()}
        return Opaque(_what(value))

    def _mapping(self, value: dict[object, object], depth: int) -> Tree:
        found: dict[str | int, Tree] = {}
        for key, item in value.items():
            if not isinstance(key, str | int):
                return Opaque("a dict whose keys are no names")
            found[key] = self.plain(item, depth + 1)
        return found


def _what(value: object) -> str:
    if isinstance(value, Unknown):
        return value.of.dotted[:200]
    if isinstance(value, Global):
        return value.dotted[:200]
    if isinstance(value, Record):
        return value.kind
    if isinstance(value, ElementType):
        return f"element type {value.name}"
    return f"{type(value).__name__} of {len(value)}" if isinstance(value, bytes | bytearray) else type(value).__name__


def keyed(value: Tree) -> Plain:
    """A tree without tensors, with every key as text, as JSON has it."""
    if isinstance(value, dict):
        return {str(key): keyed(item) for key, item in value.items()}
    if isinstance(value, list):
        return [keyed(item) for item in value]
    return value if not isinstance(value, Stored | Opaque) else None


def without_tensors(value: Tree) -> bool:
    """Whether a tree is plain values all through."""
    if isinstance(value, Stored | Opaque):
        return False
    if isinstance(value, dict):
        return all(without_tensors(item) for item in value.values())
    return not isinstance(value, list) or all(without_tensors(item) for item in value)
