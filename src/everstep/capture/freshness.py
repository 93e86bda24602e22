"""Whether gradients may be copied to the host while training goes on, straight from where they lie.

They may if nobody writes there again before the copy is done: each step makes new gradients, in memory that the
allocator will not hand out meanwhile. That is so after `zero_grad(set_to_none=True)`. It is not so when gradients are
zeroed in place, lie in a bucket of DistributedDataParallel, or in the pool of a CUDA graph. So it is learnt from the
first steps, and looked at again after each: what turns out to have been written to is not vouched for.
"""

import weakref
from collections.abc import Sequence

import torch

LESSONS = 2
"""Steps that must have made new gradients before they are copied in place."""
SURPRISES_MAX = 3
"""After so many changes of mind, gradients are always packed first."""


class Freshness:
    """Told of the gradients of every step, before the optimizer consumes them."""

    def __init__(self) -> None:
        self._held: list[tuple[weakref.ref[torch.Tensor], int]] = []
        self._places: list[int] = []
        self._lessons = 0
        self._surprises = 0

    def direct(self, gradients: Sequence[torch.Tensor]) -> bool:
        """Whether these may be copied in place. Also begins to watch them."""
        fresh = all(held() is None for held, _ in self._held)
        places = [gradient.data_ptr() for gradient in gradients]
        self._lessons = self._lessons + 1 if fresh and self._held else 0
        if self._lessons >= LESSONS and places != self._places:
            if not _own_memory(gradients):
                self._surprises = SURPRISES_MAX
            self._places = places
        self._held = [(weakref.ref(gradient), gradient._version) for gradient in gradients]  # noqa: SLF001
        return self._lessons >= LESSONS and self._surprises < SURPRISES_MAX

    def untouched(self) -> bool:
        """Whether nobody has written to the gradients that `direct` saw last."""
        for held, version in self._held:
            gradient = held()
            if gradient is not None and gradient._version != version:  # noqa: SLF001
                self._surprises += 1
                self._lessons = 0
                return False
        return True


def _own_memory(gradients: Sequence[torch.Tensor]) -> bool:
    """Whether each lies alone in memory of the ordinary pool; a CUDA graph's is written by every replay."""
    if any(gradient.untyped_storage().nbytes() > gradient.nbytes + 512 for gradient in gradients):
        return False
    shared = [
        (segment["address"], segment["address"] + segment["total_size"])
        for segment in torch.cuda.memory_snapshot()  # type: ignore[no-untyped-call]
        if tuple(segment.get("segment_pool_id", (0, 0))) != (0, 0)
    ]
    return not any(low <= gradient.data_ptr() < high for gradient in gradients for low, high in shared)
