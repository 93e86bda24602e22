"""Finds out which boxes a piece of sharding code gives to each rank, by sending numbered elements through it.

So a layout that nobody described still becomes boxes: the user's own code says where every element goes. Zeros that
come back were not sent: padding. What was found is confirmed with other numbers before it is believed.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence

import torch

from everstep.errors import Misdescribed
from everstep.layout import boxes
from everstep.layout.boxes import Shape
from everstep.layout.mesh import Mesh
from everstep.types import Box, Local, Piece

ELEMENTS_MAX = 1 << 53
"""Beyond this, numbers are not exact in the type that is sent."""

Shard = Callable[[torch.Tensor, Mapping[str, int]], torch.Tensor | None]
"""The user's code: the whole tensor and a mesh coordinate in, what that rank holds out; None for nothing."""


def probe(shard: Shard, name: str, shape: Sequence[int], mesh: Mesh) -> list[Local | None]:
    """For each rank of the mesh what it holds of a tensor of this shape; Misdescribed when it is not elements of it."""
    size = math.prod(shape)
    if size >= ELEMENTS_MAX:
        raise Misdescribed(f"{name!r}: a tensor of {size} elements is too large to number them.")
    numbered = torch.arange(1, size + 1, dtype=torch.float64).reshape(tuple(shape))
    other = torch.randn(tuple(shape), generator=torch.Generator().manual_seed(size), dtype=torch.float64)
    found: list[Local | None] = []
    for rank in range(mesh.size):
        coordinate = mesh.coordinate(rank)
        held = shard(numbered.clone(), coordinate)
        if held is None:
            found.append(None)
            continue
        local = Local(name, tuple(shape), tuple(held.shape), tuple(_pieces(name, held, tuple(shape))))
        _confirm(local, shard(other.clone(), coordinate), other)
        found.append(local)
    return found


def _pieces(name: str, held: torch.Tensor, shape: Shape) -> list[Piece]:
    """The elements of a local tensor as boxes: runs that follow each other on both sides, then joined."""
    sent = held.detach().reshape(-1)
    numbers = sent.to(torch.int64)
    size = math.prod(shape)
    if not bool((numbers.to(sent.dtype) == sent).all()) or not bool(((numbers >= 0) & (numbers <= size)).all()):
        raise Misdescribed(f"{name!r}: what came back are not elements of what was sent; sharding must not compute.")
    pieces: list[Piece] = []
    for first, start, count in _runs(numbers - 1):
        at = first
        for box in boxes.flat(shape, start, start + count):
            _join(pieces, Piece(box, at, (0,) * len(shape)))
            at += boxes.volume(box)
    return [_strided(piece) for piece in pieces]


def _runs(elements: torch.Tensor) -> Iterator[tuple[int, int, int]]:
    """Stretches of elements that follow each other: place in the buffer, first element, length. Padding is -1."""
    if not elements.numel():
        return
    breaks = (elements[1:] != elements[:-1] + 1).nonzero().reshape(-1) + 1
    starts = [0, *breaks.tolist()]
    for start, end in zip(starts, [*starts[1:], elements.numel()], strict=True):
        first = int(elements[start])
        if first < 0:  # padding, and perhaps the element 0 right behind it
            start, first = start + 1, 0
        if start < end:
            yield start, first, end - start


def _join(pieces: list[Piece], piece: Piece) -> None:
    """Add a piece; where it goes on from the one before along one axis, with the same step, the two become one."""
    while pieces and (joined := _joined(pieces[-1], piece)) is not None:
        pieces.pop()
        piece = joined
    pieces.append(piece)


def _joined(one: Piece, two: Piece) -> Piece | None:
    differing = [
        axis for axis in range(len(one.box.low))
        if (one.box.low[axis], one.box.high[axis]) != (two.box.low[axis], two.box.high[axis])
    ]  # fmt: skip
    if len(differing) != 1 or one.box.high[differing[0]] != two.box.low[differing[0]]:
        return None
    axis = differing[0]
    inner = tuple(a or b for a, b in zip(one.strides, two.strides, strict=True))
    known = [steps for steps in (one.strides, two.strides) if any(steps)]
    step, odd = divmod(two.base - one.base, one.box.shape[axis])
    if odd or any(steps[at] not in (0, inner[at]) for steps in known for at in range(len(inner))):
        return None
    if step <= 0 or inner[axis] not in (0, step) or not _same_inside(one, two, axis):
        return None
    strides = (*inner[:axis], step, *inner[axis + 1 :])
    high = (*one.box.high[:axis], two.box.high[axis], *one.box.high[axis + 1 :])
    return Piece(Box(one.box.low, high), one.base, strides)


def _same_inside(one: Piece, two: Piece, axis: int) -> bool:
    """Whether the two lie alike along every other axis: a step that only one of them has said must be the default."""
    first, second = _strided(one).strides, _strided(two).strides
    return all(first[at] == second[at] for at in range(len(first)) if at != axis and one.box.shape[at] > 1)


def _strided(piece: Piece) -> Piece:
    """A step for every axis; those that were never said are of a box in one piece."""
    shape, steps, step = piece.box.shape, list(piece.strides), 1
    for axis in reversed(range(len(shape))):
        if not steps[axis]:
            steps[axis] = step
        step = steps[axis] * shape[axis]
    return Piece(piece.box, piece.base, tuple(steps))


def _confirm(local: Local, held: torch.Tensor | None, sent: torch.Tensor) -> None:
    wanted = torch.zeros(local.shape, dtype=sent.dtype).reshape(-1)
    for piece in local.pieces:
        part = sent[boxes.slices(piece.box)]
        torch.as_strided(wanted, piece.box.shape, piece.strides, piece.base).copy_(part)
    if held is None or tuple(held.shape) != local.shape or not torch.equal(held.reshape(-1), wanted):
        raise Misdescribed(
            f"{local.logical!r}: other values were sharded in another way; sharding must depend on the place alone."
        )
