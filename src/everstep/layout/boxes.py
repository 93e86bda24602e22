"""Integer boxes of logical tensors: the one geometry that every layout comes down to.

A box is `low <= index < high` on every axis. A tensor without axes has one element, and its only box is `Box((), ())`.
"""

import math
from collections.abc import Iterable, Sequence

from everstep.types import Box

Shape = tuple[int, ...]


def volume(box: Box) -> int:
    """How many elements are in it."""
    return math.prod(box.shape)


def intersect(one: Box, two: Box) -> Box | None:
    """What both hold; None for nothing."""
    low = tuple(map(max, one.low, two.low))
    high = tuple(map(min, one.high, two.high))
    return Box(low, high) if all(lo < h for lo, h in zip(low, high, strict=True)) else None


def subtract(box: Box, hole: Box) -> list[Box]:
    """What of `box` is not in `hole`, as at most two boxes per axis that do not overlap."""
    inner = intersect(box, hole)
    if inner is None:
        return [box] if volume(box) else []
    rest: list[Box] = []
    low, high = list(box.low), list(box.high)
    for axis, (lo, h) in enumerate(zip(inner.low, inner.high, strict=True)):
        if low[axis] < lo:
            rest.append(Box(tuple(low), (*high[:axis], lo, *high[axis + 1 :])))
        if h < high[axis]:
            rest.append(Box((*low[:axis], h, *low[axis + 1 :]), tuple(high)))
        low[axis], high[axis] = lo, h
    return rest


def missing(box: Box, held: Iterable[Box]) -> list[Box]:
    """What of `box` none of the others holds."""
    rest = [box] if volume(box) else []
    for one in held:
        if not rest:
            break
        rest = [part for piece in rest for part in subtract(piece, one)]
    return rest


def overlapping(held: Sequence[Box]) -> tuple[int, int] | None:
    """Two of them that share an element, by index; None if no two do. A sweep along the first axis."""
    order = sorted((at for at, box in enumerate(held) if volume(box)), key=lambda at: held[at].low)
    open_ones: list[int] = []
    for at in order:
        box = held[at]
        open_ones = [other for other in open_ones if not box.low or held[other].high[0] > box.low[0]]
        for other in open_ones:
            if intersect(held[other], box) is not None:
                return min(other, at), max(other, at)
        open_ones.append(at)
    return None


def in_one_piece(box: Box, within: Box) -> bool:
    """Whether a box lies inside another, and in one piece there in row-major order."""
    if intersect(box, within) != box:
        return False
    first = next((axis for axis, extent in enumerate(box.shape) if extent > 1), len(box.low))
    return box.shape[first + 1 :] == within.shape[first + 1 :]


def slices(part: Box, within: Box | None = None) -> tuple[slice, ...]:
    """Where a box lies in a tensor that holds the box `within`, or all of the logical tensor."""
    origin = (0,) * len(part.low) if within is None else within.low
    return tuple(slice(lo - first, h - first) for lo, h, first in zip(part.low, part.high, origin, strict=True))


def strides(shape: Sequence[int]) -> Shape:
    """Of a tensor in row-major order, in elements."""
    found, step = [], 1
    for extent in reversed(shape):
        found.append(step)
        step *= extent
    return tuple(reversed(found))


def flat(shape: Sequence[int], start: int, stop: int) -> list[Box]:
    """The elements [start, stop) of a tensor in row-major order, in this order: at most 2N - 1 boxes for N axes, each
    in one piece."""
    if not 0 <= start <= stop <= math.prod(shape):
        raise ValueError(f"[{start}, {stop}) is not a range of {math.prod(shape)} elements")
    return list(_flat((), tuple(shape), start, stop)) if start < stop else []


def _flat(prefix: Shape, shape: Shape, start: int, stop: int) -> Iterable[Box]:
    """The same, of the part of a tensor whose first indices are `prefix`."""
    ones = tuple(index + 1 for index in prefix)
    if not shape:
        yield Box(prefix, ones)
        return
    inner = math.prod(shape[1:])
    first, begun = divmod(start, inner)
    last, left = divmod(stop, inner)
    if first == last:
        yield from _flat((*prefix, first), shape[1:], begun, left)
        return
    if begun:
        yield from _flat((*prefix, first), shape[1:], begun, inner)
        first += 1
    if first < last:
        yield Box((*prefix, first, *(0 for _ in shape[1:])), (*ones, last, *shape[1:]))
    if left:
        yield from _flat((*prefix, last), shape[1:], 0, left)
