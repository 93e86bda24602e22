"""Where tensors are packed on a device that has no memory to spare: a small place of its own, made once.

Torch's allocator hands memory out in pieces. On a device that is nearly full even a piece that is given back at once
may lie where training's next one would have been, and then that finds no room. So the workbench lies beside those
pieces, in a pool that nobody else uses, and what does not fit on it is packed in parts.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from everstep.capture.mover import aligned
from everstep.types import padded

WORKBENCH_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class Load:
    """Tensors to be packed, where each goes in the end, and how many bytes it has there."""

    tensors: Sequence[torch.Tensor]
    places: Sequence[int]
    sizes: Sequence[int]

    @property
    def packed(self) -> tuple[list[int], int]:
        """Where each lies when they are packed, and how long that is."""
        return aligned(self.sizes)


class Workbench:
    """Memory of a device outside of what torch's allocator hands out again and again."""

    def __init__(self, device: torch.device) -> None:
        self._pool = torch.cuda.MemPool()
        with torch.cuda.use_mem_pool(self._pool, device):
            self.flat = torch.empty(WORKBENCH_BYTES, dtype=torch.uint8, device=device)
        self.sent: int | None = None
        """The copy of what lies on it: until that is done, nothing else may."""


def parts(load: Load, room: int = WORKBENCH_BYTES) -> Iterator[Load]:
    """Of so many bytes at most. A tensor whose bytes do not lie in order is not cut: it may be larger."""
    tensors: list[torch.Tensor] = []
    places: list[int] = []
    sizes: list[int] = []
    left = room
    for tensor, place, size in _pieces(load, room):
        if tensors and padded(size) > left:
            yield Load(tensors, places, sizes)
            tensors, places, sizes, left = [], [], [], room
        tensors.append(tensor)
        places.append(place)
        sizes.append(size)
        left -= padded(size)
    if tensors:
        yield Load(tensors, places, sizes)


def _pieces(load: Load, room: int) -> Iterator[tuple[torch.Tensor, int, int]]:
    for tensor, place, size in zip(load.tensors, load.places, load.sizes, strict=True):
        if size <= room or not tensor.is_contiguous():
            yield tensor, place, size
            continue
        each = size // tensor.numel()  # where it goes an element may be shorter than here
        flat, count = tensor.detach().view(-1), room // each
        for begin in range(0, tensor.numel(), count):
            piece = flat[begin : begin + count]
            yield piece, place + begin * each, piece.numel() * each
