"""Where a part of a logical tensor lies in a writer's tensor, or in the program's, and how it comes there."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from everstep.layout import boxes
from everstep.types import Box, Local, Piece, boxed


@dataclass(frozen=True, slots=True)
class Move:
    """A box from one piece of a writer's tensor to one piece of the program's."""

    source: Piece
    target: Piece
    box: Box


def boxes_of(held: dict[str, Local]) -> dict[str, list[Box]]:
    """The boxes that are held of each logical tensor."""
    found: dict[str, list[Box]] = {}
    for local in held.values():
        found.setdefault(local.logical, []).extend(piece.box for piece in local.pieces)
    return found


def view(tensor: torch.Tensor, local: Local, piece: Piece) -> torch.Tensor:
    """A piece of a local tensor, in the shape of its box: no copy."""
    if piece == boxed(local.logical, local.logical_shape, piece.box).pieces[0] and local.shape == piece.box.shape:
        return tensor  # all of it, and perhaps not contiguous
    return torch.as_strided(tensor, piece.box.shape, piece.strides, tensor.storage_offset() + piece.base)


def copy(source: torch.Tensor, theirs: Local, target: torch.Tensor, ours: Local, moves: Sequence[Move]) -> bool:
    """From a writer's tensor to the program's. Whether anything was copied: else all of it was read to its place."""
    copied = False
    with torch.no_grad():
        if theirs == ours:
            if copied := not _same_place(source, target):
                target.copy_(source)  # with the padding, as it was
            return copied
        for move in moves:
            one = view(source, theirs, move.source)[boxes.slices(move.box, move.source.box)]
            goal = view(target, ours, move.target)[boxes.slices(move.box, move.target.box)]
            if not _same_place(one, goal):
                goal.copy_(one)
                copied = True
    return copied


def _same_place(one: torch.Tensor, two: torch.Tensor) -> bool:
    """Whether two tensors of one shape are the same memory, element by element."""
    return one.data_ptr() == two.data_ptr() and all(
        a == b for a, b, extent in zip(one.stride(), two.stride(), one.shape, strict=True) if extent > 1
    )
