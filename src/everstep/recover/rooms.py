"""Memory for tensors that are read only to be copied from: the same for one writer's part after the other.

Fresh memory for each would be faulted in page by page, which takes longer than reading it does.
"""

import torch

from everstep.capture.tensors import TORCH_DTYPES
from everstep.recover.pages import Pages, memory
from everstep.types import Tensor, padded

BLOCK_BYTES = 64 << 20


class Rooms:
    """Blocks that are given out again after `begin`."""

    def __init__(self) -> None:
        self._blocks: list[torch.Tensor] = []
        self._at, self._used = 0, 0
        self.taken = 0
        """Bytes, since it began."""
        self.pages = Pages()
        """For records."""

    def begin(self) -> None:
        """Nobody uses what was taken before."""
        self._at, self._used, self.taken = 0, 0, 0

    def take(self, described: Tensor) -> torch.Tensor:
        """A contiguous tensor of this shape, with anything in it."""
        needed = padded(described.nbytes)
        self.taken += needed
        while self._at < len(self._blocks) and self._used + needed > self._blocks[self._at].numel():
            self._at, self._used = self._at + 1, 0
        if self._at == len(self._blocks):
            fresh = memory(max(BLOCK_BYTES, needed))
            self._blocks.append(torch.frombuffer(fresh, dtype=torch.uint8))
        first, self._used = self._used, self._used + needed
        part = self._blocks[self._at][first : first + described.nbytes]
        return part.view(TORCH_DTYPES[described.dtype]).view(described.box.shape)
