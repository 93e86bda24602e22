"""Whether a device has memory to spare for what is gone from training but still being copied."""

import torch

LOOK_EVERY = 16
"""Looking takes time. At first it is done every time all the same: training takes its memory step by step."""
TO_COME = 3
"""Times as much as the gradients: what an optimizer's first step may take."""


class Room:
    """Memory beside the most that training has taken so far."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._most = self._left = self._calls = 0

    def left(self, nbytes: int) -> int:
        """Bytes to spare, where so many are about to be copied."""
        if self._calls < LOOK_EVERY or self._calls % LOOK_EVERY == 0:
            self._left = self._look()
        self._calls += 1
        return self._left if self._calls > 1 else self._left - TO_COME * nbytes

    def _look(self) -> int:
        free, total = torch.cuda.mem_get_info(self._device)
        allowed = int(torch.cuda.get_per_process_memory_fraction(self._device) * total)
        self._most = max(self._most, torch.cuda.max_memory_allocated(self._device))
        return min(free + torch.cuda.memory_reserved(self._device), allowed) - self._most
