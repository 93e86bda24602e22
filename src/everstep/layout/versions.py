"""Tensors of which ranks hold values of their own, as the `Partial` of a spec says: axis 0 of the logical tensor counts
them. Fitted to how many there were in the run: the same, others, or none.
"""

from collections.abc import Iterable

from everstep.layout.boxes import Shape
from everstep.types import Box, Local, Piece


def shape_of_one(held: Local) -> Shape:
    """Of one version, or of the tensor, if there are none."""
    return held.logical_shape[1:] if held.versions else held.logical_shape


def apart(held: Iterable[Local]) -> dict[str, Local]:
    """Of the logical tensors that have versions, one that is held."""
    return {one.logical: one for one in held if one.versions}


def kinds(held: Iterable[Local]) -> list[tuple[int, str, str]]:
    """How many versions, how they become one, and of which tensors, in words."""
    found: dict[tuple[int, str], list[str]] = {}
    for one in held:
        found.setdefault((one.logical_shape[0], one.versions[0]), []).append(one.logical)
    return [
        (count, how, names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more")
        for (count, how), names in found.items()
    ]


def fitted(ours: Local, theirs: Local | None) -> Local:
    """What is to be read for `ours`. `theirs`: of the same tensor in the run, if it had versions there.

    Each has its own, if they are as many. One that is new takes what was there before; of others than there were, each
    takes all of them, at the same place, to be reduced.
    """
    if theirs is None:
        return _one(ours) if ours.versions else ours
    if ours.versions and ours.logical_shape == theirs.logical_shape:
        return ours
    count = theirs.logical_shape[0]
    taken, one = 1 if theirs.versions[0] == "first" else count, _one(ours) if ours.versions else ours
    pieces = (
        Piece(Box((0, *piece.box.low), (taken, *piece.box.high)), piece.base, (0, *piece.strides))
        for piece in one.pieces
    )
    return Local(one.logical, (count, *one.logical_shape), one.shape, tuple(pieces), theirs.versions)


def _one(held: Local) -> Local:
    pieces = (Piece(Box(p.box.low[1:], p.box.high[1:]), p.base, p.strides[1:]) for p in held.pieces)
    return Local(held.logical, held.logical_shape[1:], held.shape, tuple(pieces))
