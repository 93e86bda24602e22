"""Digests of a whole state in device memory, taken while training goes on and read one step later, without waiting."""

from collections.abc import Mapping

import torch

from everstep.capture.digests import digest
from everstep.native import gpu
from everstep.types import Pair


class Proof:
    """`begin` queues the digests of a step, `finish` gives them at the next one."""

    def __init__(self) -> None:
        self._table = gpu.Table()
        self._begun: tuple[int, list[str], torch.Tensor, torch.cuda.Event, dict[str, Pair]] | None = None

    def begin(self, step: int, tensors: Mapping[str, torch.Tensor]) -> None:
        """Digest the state as it is on the device now: after everything queued so far, before anything queued later."""
        far = {name: tensor.detach() for name, tensor in tensors.items() if tensor.device.type == "cuda"}
        near = {name: tensor for name, tensor in tensors.items() if name not in far}
        sums = gpu.digests(list(far.values()), self._table)
        host = torch.empty(sums.shape, dtype=sums.dtype, pin_memory=True)
        host.copy_(sums, non_blocking=True)
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record()
        pairs = dict(zip(near, digest(list(near.values())), strict=True))
        self._begun = (step, list(far), host, event, pairs)

    def finish(self, step: int) -> Mapping[str, Pair] | None:
        """The digests of this step, of parameters and optimizer state; None when they were not begun."""
        if self._begun is None or self._begun[0] != step:
            return None
        _, names, host, event, pairs = self._begun
        self._begun = None
        event.synchronize()  # a step ago: it is there
        return pairs | dict(zip(names, gpu.pairs(host), strict=True))
