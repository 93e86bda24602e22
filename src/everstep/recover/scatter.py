"""A writer's tensor that the program has in several places, or only some of: laid there piece by piece as it is read.

Nothing of it is kept beside the program's own memory but the piece at hand, which is still in the processor's cache.
What was laid is digested where by the layouts it must lie now, and the rest of the piece where it was read to: together
that proves what was read and where it was put.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from everstep import native
from everstep.capture.digests import total
from everstep.layout import boxes
from everstep.recover.parts import Move, view
from everstep.recover.placed import around
from everstep.types import Box, Local, Pair, Piece, boxed


@dataclass(frozen=True, slots=True)
class _Place:
    """Memory that holds a box, strided."""

    room: torch.Tensor
    address: int
    box: Box
    steps: Sequence[int]

    @staticmethod
    def of(tensor: torch.Tensor, local: Local, piece: Piece) -> "_Place":
        room = view(tensor, local, piece)
        return _Place(room, room.data_ptr(), piece.box, room.stride())


@dataclass(frozen=True, slots=True)
class _Goal:
    """A box, where it is laid by the plan, and where it must lie."""

    box: Box
    planned: _Place
    must: _Place


class Scatter:
    """Takes the elements of a writer's tensor in any order, each once."""

    def __init__(self, box: Box, dtype: torch.dtype, goals: Sequence[_Goal]) -> None:
        self._box, self._goals = box, goals
        self._width = dtype.itemsize
        self._indices = boxes.strides(box.shape)
        self.doubted = False
        """Whether what was read is right, and what was laid is not: then whoever proves the program must find that."""
        self.row_bytes = self._width * boxes.volume(box) // box.shape[0]
        """What is best not cut."""
        self.stand_in = torch.empty(1, dtype=dtype).expand(box.shape)
        """Of its shape, with nothing in it."""

    @staticmethod
    def of(theirs: Local, target: torch.Tensor, ours: Local, moves: Sequence[Move]) -> "Scatter | None":
        """From a writer's tensor to a tensor of the program, of its dtype, which takes these boxes. None unless the
        first is one box in one piece, and the second in host memory."""
        if len(theirs.pieces) != 1 or theirs != boxed(theirs.logical, theirs.logical_shape, theirs.pieces[0].box):
            return None
        if not theirs.shape or target.device.type != "cpu" or target.is_neg() or target.is_conj():
            return None
        goals = [
            _Goal(move.box, _Place.of(target, ours, move.target), _Place.of(target, ours, around(move.box, ours)))
            for move in moves
        ]
        return Scatter(theirs.pieces[0].box, target.dtype, goals)

    def put(self, first: int, count: int, address: int) -> Pair:
        """So many elements from this one on, in row-major order, which lie at an address; what they add to the digest
        of the whole tensor."""
        origin, sums = self._box.low, []
        for part in boxes.flat(self._box.shape, first, first + count):
            piece = Box(_sum(part.low, origin), _sum(part.high, origin))
            desk = _Place(self.stand_in, address, piece, boxes.strides(part.shape))
            left = [piece]
            for goal in self._goals:
                if (common := boxes.intersect(piece, goal.box)) is not None:
                    source, target = self._where(common, desk), self._where(common, goal.planned)
                    native.lay(source, target, common.shape, desk.steps, goal.planned.steps, self._width)
                    sums.append(self._digest(common, goal.must))
                    left = [box for rest in left for box in boxes.subtract(rest, common)]
            sums += [self._digest(rest, desk) for rest in left]
            address += boxes.volume(part) * self._width
        return total(sums)

    def _where(self, box: Box, place: _Place) -> int:
        return place.address + self._width * _offset(box, place.box, place.steps)

    def _digest(self, box: Box, place: _Place) -> Pair:
        index = _offset(box, self._box, self._indices)
        where = self._where(box, place)
        return native.digest_box(where, box.shape, place.steps, self._width, index, self._indices, 1)


def _offset(box: Box, within: Box, steps: Sequence[int]) -> int:
    return sum((low - first) * step for low, first, step in zip(box.low, within.low, steps, strict=True))


def _sum(one: Sequence[int], two: Sequence[int]) -> tuple[int, ...]:
    return tuple(map(sum, zip(one, two, strict=True)))
