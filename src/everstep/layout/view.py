"""What a rank holds of a logical tensor: a local tensor, parts of which are boxes of the logical one.

Every layout is made of a few moves from the whole tensor: a narrower part, several joined, padding, one index of an
axis. In the end a view is lowered to pieces: boxes, and where their elements lie in a buffer.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from everstep.layout import boxes
from everstep.layout.boxes import Shape
from everstep.types import Box, Piece, whole


@dataclass(frozen=True, slots=True)
class Part:
    """A box of the logical tensor, and the index in the local tensor where it begins."""

    box: Box
    at: Shape


@dataclass(frozen=True, slots=True)
class View:
    """A local tensor of this `shape`. `axes` names the logical axis of each of its own. What no part covers pads it."""

    shape: Shape
    axes: Shape
    parts: tuple[Part, ...]

    def narrow(self, axis: int, start: int, length: int) -> "View":
        """A range of one axis."""
        if start < 0 or length < 0 or start + length > self.shape[axis]:
            raise ValueError(f"[{start}, {start + length}) leaves an axis of {self.shape[axis]}")
        parts = []
        for part in self.parts:
            dim, at = self.axes[axis], part.at[axis]
            low, high = max(start, at), min(start + length, at + part.box.shape[dim])
            if low < high:
                first = part.box.low[dim] + low - at
                box = Box(_with(part.box.low, dim, first), _with(part.box.high, dim, first + high - low))
                parts.append(Part(box, _with(part.at, axis, low - start)))
        return View(_with(self.shape, axis, length), self.axes, tuple(parts))

    def pad(self, axis: int, length: int) -> "View":
        """A longer axis; what is added holds nothing."""
        return replace(self, shape=_with(self.shape, axis, length))

    def drop(self, axis: int) -> "View":
        """The same without an axis of one index."""
        if self.shape[axis] != 1:
            raise ValueError(f"an axis of {self.shape[axis]} cannot be dropped")
        parts = tuple(Part(part.box, _without(part.at, axis)) for part in self.parts)
        return View(_without(self.shape, axis), _without(self.axes, axis), parts)

    def lower(self, base: int = 0) -> list[Piece]:
        """The pieces, if the local tensor lies in row-major order at `base`."""
        steps = boxes.strides(self.shape)
        return [Piece(part.box, base + _dot(part.at, steps), self._strides(len(part.box.low))) for part in self.parts]

    def lower_flat(self, start: int, stop: int, base: int) -> list[Piece]:
        """The pieces of the elements [start, stop) of the local tensor in row-major order, if these lie at `base`."""
        pieces = []
        steps = boxes.strides(self.shape)
        for box in boxes.flat(self.shape, start, stop):
            part = self
            for axis, (low, high) in enumerate(zip(box.low, box.high, strict=True)):
                part = part.narrow(axis, low, high - low)
            origin = base + _dot(box.low, steps) - start
            pieces += [
                Piece(held.box, origin + _dot(held.at, steps), self._strides(len(held.box.low))) for held in part.parts
            ]
        return pieces

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    def _strides(self, dims: int) -> Shape:
        """A step for every logical axis; an axis that was dropped has one index, and no step."""
        steps = dict(zip(self.axes, boxes.strides(self.shape), strict=True))
        return tuple(steps.get(dim, 0) for dim in range(dims))


def full(shape: Sequence[int]) -> View:
    """The whole tensor."""
    return View(tuple(shape), tuple(range(len(shape))), (Part(whole(shape), (0,) * len(shape)),))


def join(views: Sequence[View], axis: int) -> View:
    """Views that differ in one axis only, one after the other."""
    parts, length = [], 0
    for view in views:
        parts += [Part(part.box, _with(part.at, axis, part.at[axis] + length)) for part in view.parts]
        length += view.shape[axis]
    return View(_with(views[0].shape, axis, length), views[0].axes, tuple(parts))


def _with(values: Shape, at: int, value: int) -> Shape:
    return (*values[:at], value, *values[at + 1 :])


def _without(values: Shape, at: int) -> Shape:
    return (*values[:at], *values[at + 1 :])


def _dot(one: Shape, two: Shape) -> int:
    return sum(a * b for a, b in zip(one, two, strict=True))
