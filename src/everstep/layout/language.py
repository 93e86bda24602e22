"""The words of a spec. Each turns the view before it into the view of one rank; the outermost comes first.

`dim` counts the axes of the tensor as it is when the word is reached: after `Stack`, without the stacked one.
"""

import functools
from dataclasses import dataclass
from typing import Literal, Protocol

from everstep.errors import Misdescribed
from everstep.layout import view as views
from everstep.layout.mesh import Seat
from everstep.layout.splits import Even, Range, Split
from everstep.layout.view import View


class Word(Protocol):
    def apply(self, view: View, seat: Seat) -> View | None:
        """What of this is held on that seat; None if the tensor is not there at all."""


Layout = tuple[Word, ...]
EVEN = Even()


@dataclass(frozen=True, slots=True)
class Shard:
    """A range of one axis for each rank of a mesh axis."""

    axis: str
    dim: int
    split: Split = EVEN

    def apply(self, view: View, seat: Seat) -> View:
        at, count = seat.on(self.axis)
        start, length = _cut(self.split, _extent(view, self.dim), count)[at]
        return view.narrow(self.dim, start, length)


@dataclass(frozen=True, slots=True)
class Replicate:
    """The same on every rank of a mesh axis; saved once, cut among them."""

    axis: str

    def apply(self, view: View, seat: Seat) -> View:
        seat.mesh.extent(self.axis)  # not where on the axis: all hold the same
        return view


@dataclass(frozen=True, slots=True)
class Partial:
    """The first word: every rank of a mesh axis holds its own version. All are saved. As many ranks get theirs back;
    others get one that is reduced from all of them, and so does its optimizer state."""

    axis: str
    reduce: Literal["mean", "sum", "first"] = "mean"

    def apply(self, view: View, seat: Seat) -> View:
        at, _ = seat.on(self.axis)  # axis 0 was added for it: see `spec`
        return view.narrow(0, at, 1).drop(0)


@dataclass(frozen=True, slots=True)
class Unique:
    """On one rank of a mesh axis only: rank `at`, or the one whose `stages` list the number captured as `index`."""

    axis: str
    at: int = 0
    stages: tuple[tuple[int, ...], ...] = ()
    index: str = ""

    def apply(self, view: View, seat: Seat) -> View | None:
        here, count = seat.on(self.axis)
        owner = self.at
        if self.stages:
            number = seat.index(self.index)
            owners = [stage for stage, held in enumerate(self.stages) if number in held]
            if len(self.stages) != count or len(owners) != 1:
                raise Misdescribed(
                    f"Unique({self.axis!r}): stages {owners} of {len(self.stages)} hold {self.index} {number}. It must "
                    f"be one, of {count}."
                )
            owner = owners[0]
        return view if here == owner else None


@dataclass(frozen=True, slots=True)
class Slice:
    """One of the parts that `Fused` joins: so many indices of the axis, laid out by words of their own."""

    size: int
    layout: Layout = ()


@dataclass(frozen=True, slots=True)
class Fused:
    """Several tensors that are one along `dim` (q, k and v; gate and up), each laid out by itself and joined again."""

    dim: int
    parts: tuple[Slice, ...]

    def apply(self, view: View, seat: Seat) -> View:
        extent, at, found = _extent(view, self.dim), 0, []
        if sum(part.size for part in self.parts) != extent:
            raise Misdescribed(
                f"Fused: parts of {[part.size for part in self.parts]} do not make up axis {self.dim} of {extent}."
            )
        for part in self.parts:
            held = view.narrow(self.dim, at, part.size)
            found.append(applied(part.layout, held, seat) or held.narrow(self.dim, 0, 0))
            at += part.size
        return views.join(found, self.dim)


@dataclass(frozen=True, slots=True)
class Gather:
    """Blocks of one axis in an order of their own: for each rank of a mesh axis, the numbers of its blocks."""

    axis: str
    dim: int
    block: int
    blocks: tuple[tuple[int, ...], ...]

    def apply(self, view: View, seat: Seat) -> View:
        at, count = seat.on(self.axis)
        extent = _extent(view, self.dim)
        if len(self.blocks) != count or any((number + 1) * self.block > extent for number in self.blocks[at]):
            raise Misdescribed(
                f"Gather: {len(self.blocks)} lists of blocks of {self.block} do not fit an axis of {extent} among "
                f"{count} ranks."
            )
        held = [view.narrow(self.dim, number * self.block, self.block) for number in self.blocks[at]]
        return views.join(held, self.dim) if held else view.narrow(self.dim, 0, 0)


@dataclass(frozen=True, slots=True)
class Pad:
    """One axis made longer, to a multiple of `multiple_of` (times the ranks of `axis`). Padding is never saved."""

    dim: int
    multiple_of: int
    axis: str = ""

    def apply(self, view: View, seat: Seat) -> View:
        grain = self.multiple_of * (seat.mesh.extent(self.axis) if self.axis else 1)
        return view.pad(self.dim, -(-_extent(view, self.dim) // grain) * grain)


@dataclass(frozen=True, slots=True)
class Stack:
    """The program's tensor is one index of an axis of the logical one: `layers.3.w` is `layers.w[3]`."""

    dim: int
    index: str

    def apply(self, view: View, seat: Seat) -> View:
        number, extent = seat.index(self.index), _extent(view, self.dim)
        if number >= extent:
            raise Misdescribed(f"Stack: there is no {self.index} {number} in an axis of {extent}.")
        return view.narrow(self.dim, number, 1).drop(self.dim)


@dataclass(frozen=True, slots=True)
class Experts:
    """Whole experts along `dim`, in equal numbers, or as `placement` lists them for each rank of a mesh axis."""

    axis: str
    dim: int = 0
    placement: tuple[tuple[int, ...], ...] = ()

    def apply(self, view: View, seat: Seat) -> View:
        if self.placement:
            return Gather(self.axis, self.dim, 1, self.placement).apply(view, seat)
        return Shard(self.axis, self.dim).apply(view, seat)


@dataclass(frozen=True, slots=True)
class Flat:
    """The last word: what is held so far, flattened and cut among the ranks of a mesh axis, as ZeRO and distributed
    optimizers do.

    Each tensor by itself, or those of one `bucket` one after the other. In a bucket each tensor begins at a multiple
    of `align`, and the end is padded to a multiple of the ranks times `align` and `pad`.
    """

    axis: str
    bucket: str = ""
    align: int = 1
    pad: int = 1

    def apply(self, view: View, seat: Seat) -> View:
        seat.mesh.extent(self.axis)
        return view  # the cut needs all tensors of the bucket: see `spec`


def applied(layout: Layout, view: View, seat: Seat) -> View | None:
    """All words, one after the other."""
    held: View | None = view
    for word in layout:
        if held is not None:
            held = word.apply(held, seat)
    return held


@functools.lru_cache(maxsize=1 << 12)
def _cut(split: Split, extent: int, count: int) -> list[Range]:
    """All ranges of an axis, once for all ranks: each of thousands would make the whole list to use one of it."""
    return split.cut(extent, count)


def _extent(view: View, dim: int) -> int:
    if not 0 <= dim < len(view.shape):
        raise Misdescribed(f"a tensor of shape {view.shape} has no axis {dim}.")
    return view.shape[dim]
