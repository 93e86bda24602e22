"""Whether gradients may be copied to the host while training goes on, straight from where they lie.

They may if nobody writes there again before the copy is done: each step makes new gradients, in memory that the
allocator will not hand out meanwhile. That is so after `zero_grad(set_to_none=True)`. It is not so when gradients are
zeroed in place, lie in a bucket of DistributedDataParallel, or in the pool of a CUDA graph. So it is learnt from the
first steps, and looked at again after each: what turns out to have been written to is not vouched for.
"""

import weakref
from bisect import bisect_right
from collections.abc import Sequence

import torch

LESSONS = 2
"""Steps that must have made new gradients before they are copied in place."""
ROUNDED_BYTES = 512
"""The allocator gives whole units of this."""
SURPRISES_MAX = 3
"""After so many changes of mind, gradients are always packed first."""


class Freshness:
    """Told of the gradients of every step, before the optimizer consumes them."""

    def __init__(self) -> None:
        self._held: list[tuple[weakref.ref[torch.Tensor], int]] = []
        self._places: list[int] = []
        self._pool = Pool()
        self._lessons = 0
        self._surprises = 0

    def direct(self, gradients: Sequence[torch.Tensor]) -> bool:
        """Whether these may be copied in place. Also begins to watch them."""
        fresh = all(held() is None for held, _ in self._held)
        places = [gradient.data_ptr() for gradient in gradients]
        self._lessons = self._lessons + 1 if fresh and self._held else 0
        if self._lessons >= LESSONS and places != self._places:
            if not self._pool.holds(gradients):
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


class Pool:
    """The segments of the ordinary pool. A CUDA graph has others, which every replay writes to.

    A snapshot takes milliseconds, and gradients move at every step: it is taken anew for a segment that is not known,
    and when segments were given back, as their addresses may be used again.
    """

    def __init__(self) -> None:
        self._lows: list[int] = []
        self._highs: list[int] = []
        self._freed = -1

    def holds(self, tensors: Sequence[torch.Tensor]) -> bool:
        """Whether each of them lies in it, alone in its memory."""
        if torch.cuda.get_allocator_backend() != "native":
            return False  # others do not say
        if any(tensor.untyped_storage().nbytes() > tensor.nbytes + ROUNDED_BYTES for tensor in tensors):
            return False
        freed = torch.cuda.memory_stats().get("num_device_free", -1)
        if freed != self._freed or freed < 0 or not self._known(tensors):
            self._look()
            self._freed = freed
        return self._known(tensors)

    def _known(self, tensors: Sequence[torch.Tensor]) -> bool:
        for tensor in tensors:
            at = bisect_right(self._lows, tensor.data_ptr()) - 1
            if at < 0 or tensor.data_ptr() >= self._highs[at]:
                return False
        return True

    def _look(self) -> None:
        segments = sorted(
            (segment["address"], segment["address"] + segment["total_size"])
            for segment in torch.cuda.memory_snapshot()  # type: ignore[no-untyped-call]
            if tuple(segment.get("segment_pool_id", (0, 0))) == (0, 0)
        )
        self._lows, self._highs = [low for low, _ in segments], [high for _, high in segments]
