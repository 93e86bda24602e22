"""Digests of a whole state in device memory, taken while training goes on and read one step later, without waiting."""

from collections.abc import Mapping

import torch

from everstep.capture.digests import digest
from everstep.native import gpu
from everstep.types import Pair


class Proof:
    """`begin` queues the digests of a step, `finish` gives them at the next one.

    They travel on a stream of their own: a device copies to the host one thing after the other, and training would wait
    with them until the gradients that left before them have arrived.
    """

    def __init__(self) -> None:
        self._table = gpu.Table()
        self._stream: torch.cuda.Stream | None = None
        self._begun: tuple[int, list[str], torch.Tensor, torch.cuda.Event, dict[str, Pair]] | None = None

    def begin(self, step: int, tensors: Mapping[str, torch.Tensor]) -> None:
        """Digest the state as it is on the device now: after everything queued so far, before anything queued later."""
        far = {name: tensor.detach() for name, tensor in tensors.items() if tensor.device.type == "cuda"}
        near = {name: tensor for name, tensor in tensors.items() if name not in far}
        sums = gpu.digests(list(far.values()), self._table)
        host = torch.empty(sums.shape, dtype=sums.dtype, pin_memory=True)
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        if far:
            self._send(sums, host, event)
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

    def _send(self, sums: torch.Tensor, host: torch.Tensor, arrived: torch.cuda.Event) -> None:
        self._stream = self._stream or torch.cuda.Stream(sums.device)  # type: ignore[no-untyped-call]
        self._stream.wait_stream(torch.cuda.current_stream(sums.device))
        with torch.cuda.stream(self._stream):
            host.copy_(sums, non_blocking=True)
            arrived.record()
        sums.record_stream(self._stream)
