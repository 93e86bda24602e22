"""Host memory to a device through two pinned buffers in turn: several times as fast as the driver's own staging.

While the device reads one buffer, all threads fill the other. Memory that is left to us is not pinned: pinning it would
take longer than bringing it over.
"""

import torch

from everstep import native

BUFFER_BYTES = 64 << 20
SMALL_BYTES = 1 << 20
"""Below this a buffer gains nothing."""


class Ferry:
    """For one recovery. Whatever cannot be ferried is copied by torch.

    All cores help, however few training is given (torchrun gives one): nothing else is going on.
    """

    def __init__(self, buffer_bytes: int = BUFFER_BYTES) -> None:
        self._threads = native.threads_max()
        self._buffer_bytes = buffer_bytes
        self._buffers: list[tuple[torch.Tensor, torch.cuda.Event]] = []
        self._turn = 0

    def bring(self, target: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
        """`target.copy_(source)`. The source may change when this returns; what is queued on the target comes after."""
        if not _ferriable(target, source):
            return target.copy_(source)
        from_here, to_there = source.detach(), target.detach().view(-1).view(torch.uint8)
        nbytes = to_there.numel()
        for at in range(0, nbytes, self._buffer_bytes):
            count = min(self._buffer_bytes, nbytes - at)
            buffer, free = self._next()
            free.synchronize()
            native.gather([from_here.data_ptr() + at], [count], buffer.data_ptr(), [0], self._threads)
            to_there[at : at + count].copy_(buffer[:count], non_blocking=True)
            free.record(torch.cuda.current_stream(target.device))
        return target

    def _next(self) -> tuple[torch.Tensor, torch.cuda.Event]:
        if len(self._buffers) < 2:
            buffer = torch.empty(self._buffer_bytes, dtype=torch.uint8, pin_memory=True)
            self._buffers.append((buffer, torch.cuda.Event()))  # type: ignore[no-untyped-call]
        self._turn += 1
        return self._buffers[self._turn % len(self._buffers)]


def _ferriable(target: torch.Tensor, source: torch.Tensor) -> bool:
    """Large, on the two sides, and of the same bytes in the same order."""
    return (
        target.device.type == "cuda"
        and source.device.type == "cpu"
        and target.dtype == source.dtype
        and target.shape == source.shape
        and target.is_contiguous()
        and source.is_contiguous()
        and not (source.is_conj() or source.is_neg() or target.is_conj() or target.is_neg())
        and source.nbytes >= SMALL_BYTES
    )
