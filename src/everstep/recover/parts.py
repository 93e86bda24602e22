"""Where a part of a logical tensor lies in a writer's tensor, or in the program's."""

from dataclasses import dataclass

import torch

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
