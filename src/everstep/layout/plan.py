"""From boxes that were saved to pieces that are wanted: which elements are copied from where to where, each once."""

import bisect
import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from everstep.layout import boxes
from everstep.layout.boxes import Shape
from everstep.types import Box, Piece


@dataclass(frozen=True, slots=True)
class Copy:
    """A box of elements from saved box number `source`, which lies in row-major order, to a buffer. Offsets and strides
    are in elements."""

    source: int
    shape: Shape
    source_offset: int
    source_strides: Shape
    target_offset: int
    target_strides: Shape

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    def runs(self) -> Iterator[tuple[int, int, int]]:
        """The copy as ranges that are in one piece on both sides: source offset, target offset, length."""
        length, outer = 1, len(self.shape)
        while outer and (
            self.shape[outer - 1] == 1 or self.source_strides[outer - 1] == self.target_strides[outer - 1] == length
        ):
            length *= self.shape[outer - 1]
            outer -= 1
        for index in itertools.product(*map(range, self.shape[:outer])):
            source = self.source_offset + sum(i * s for i, s in zip(index, self.source_strides, strict=False))
            target = self.target_offset + sum(i * s for i, s in zip(index, self.target_strides, strict=False))
            yield source, target, length


class Saved:
    """The saved boxes of one logical tensor, in an order that finds those which meet another quickly."""

    def __init__(self, held: Sequence[Box]) -> None:
        self._held = held
        self._order = sorted((at for at in range(len(held)) if boxes.volume(held[at])), key=lambda at: held[at].low)
        self._lows = [held[at].low for at in self._order]
        longest = max((held[at].high[0] - held[at].low[0] for at in self._order if held[at].low), default=0)
        self._longest = longest

    def meeting(self, box: Box) -> Iterator[tuple[int, Box]]:
        """Those that share elements with it, and what they share."""
        if not box.low:
            yield from ((at, box) for at in self._order)
            return
        first = bisect.bisect_left(self._lows, (box.low[0] - self._longest,))
        for place in range(first, len(self._order)):
            at = self._order[place]
            if self._held[at].low[0] >= box.high[0]:
                return
            if (common := boxes.intersect(self._held[at], box)) is not None:
                yield at, common

    def plan(self, wanted: Sequence[Piece]) -> tuple[list[Copy], list[Box]]:
        """The copies that fill the wanted pieces, and what nobody saved. Of replicas one is read."""
        copies: list[Copy] = []
        absent: list[Box] = []
        for piece in wanted:
            rest = [piece.box] if boxes.volume(piece.box) else []
            for at, common in self.meeting(piece.box):
                if not rest:
                    break
                left: list[Box] = []
                for box in rest:
                    part = boxes.intersect(box, common)
                    if part is None:
                        left.append(box)
                    else:
                        copies.append(_copy(at, self._held[at], piece, part))
                        left += boxes.subtract(box, part)
                rest = left
            absent += rest
        return copies, absent


def _copy(at: int, source: Box, piece: Piece, part: Box) -> Copy:
    steps = boxes.strides(source.shape)
    inside = [low - first for low, first in zip(part.low, source.low, strict=True)]
    there = [low - first for low, first in zip(part.low, piece.box.low, strict=True)]
    return Copy(
        at, part.shape, sum(i * s for i, s in zip(inside, steps, strict=True)), steps,
        piece.base + sum(i * s for i, s in zip(there, piece.strides, strict=True)), piece.strides,
    )  # fmt: skip
