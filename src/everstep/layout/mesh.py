"""Ranks as points of a grid with named axes; the last axis changes fastest."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from everstep.errors import Misdescribed


@dataclass(frozen=True, slots=True)
class Mesh:
    """`Mesh((("pp", 2), ("dp", 4), ("tp", 2)))` has sixteen ranks."""

    axes: tuple[tuple[str, int], ...] = ()

    def __post_init__(self) -> None:
        names = [name for name, _ in self.axes]
        if len(set(names)) != len(names) or any(count < 1 for _, count in self.axes):
            raise Misdescribed(
                f"a mesh needs axes of different names, each of at least one rank; these are {self.axes}."
            )

    @property
    def size(self) -> int:
        return math.prod(count for _, count in self.axes)

    def coordinate(self, rank: int) -> dict[str, int]:
        """Where this rank stands on each axis."""
        if not 0 <= rank < self.size:
            raise Misdescribed(f"there is no rank {rank} in a mesh of {self.size}.")
        found: dict[str, int] = {}
        for name, count in reversed(self.axes):
            rank, found[name] = divmod(rank, count)
        return found

    def rank(self, coordinate: Mapping[str, int]) -> int:
        """The rank that stands there."""
        found = 0
        for name, count in self.axes:
            found = found * count + coordinate[name]
        return found

    def extent(self, axis: str) -> int:
        """How many ranks an axis has."""
        for name, count in self.axes:
            if name == axis:
                return count
        raise Misdescribed(f"the mesh has no axis {axis!r}; it has {[name for name, _ in self.axes]}.")


@dataclass(frozen=True, slots=True)
class Seat:
    """A rank's place in a mesh, and what a rule's pattern has captured from a tensor's name."""

    mesh: Mesh
    coordinate: Mapping[str, int]
    captured: Mapping[str, str]

    def on(self, axis: str) -> tuple[int, int]:
        """Which of how many on this axis."""
        count = self.mesh.extent(axis)
        return self.coordinate[axis], count

    def index(self, name: str) -> int:
        """The number that the pattern has captured under this name."""
        text = self.captured.get(name)
        if text is None or not text.isdecimal():
            raise Misdescribed(f"the pattern captures no number {name!r}; write it as (?P<{name}>\\d+).")
        return int(text)
