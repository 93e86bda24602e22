"""A mover that copies as a device does, later: what it reads is read when training is about to change it."""

from collections.abc import Callable, Sequence

import torch

from everstep.capture.mover import HostMover, Parcel, Target, Tensors
from everstep.ring.ring import E_DEVICE, Ring
from everstep.store.memory import Block
from everstep.types import Tensor


class LateMover:
    """`Mover` without a GPU. Copies wait until `settle` or `synchronize`; words come in their order."""

    lasting = False

    def __init__(self, bus_bytes_per_s: float | None = None) -> None:
        self.bus_bytes_per_s = bus_bytes_per_s
        self._now = HostMover()
        self._queue: list[Callable[[], None]] = []
        self.pinned: list[int] = []
        self.untouched = True

    def pin(self, block: Block) -> None:
        assert block.address not in self.pinned
        self.pinned.append(block.address)

    def unpin(self, block: Block) -> None:
        self.pinned.remove(block.address)

    def copy(self, target: Target, parcel: Parcel) -> None:
        assert any(p <= target.address for p in self.pinned)
        self._queue.append(lambda: self._now.copy(target, parcel))

    def take(
        self, what: str, target: Target, described: Sequence[Tensor], places: Sequence[int], tensors: Tensors,
        *, brief: bool,
    ) -> None:  # fmt: skip
        held = [tensor.detach().clone() for tensor in tensors]
        self._now.take(what, _Nowhere(places, described), described, places, tensors, brief=brief)
        self._queue.append(lambda: self._now.take(what, target, described, places, held, brief=brief))

    def vouch(self, ring: Ring, sequence: int) -> None:
        self._queue.append(lambda: ring.vouch(sequence, E_DEVICE))

    def settle(self) -> bool:
        self.synchronize()
        found, self.untouched = self.untouched, True
        return found

    def synchronize(self) -> None:
        while self._queue:
            self._queue.pop(0)()

    def release(self) -> None:
        self.synchronize()
        self.pinned.clear()


class _Nowhere:
    """Bytes that nobody reads: rounding happens in the gradients themselves as well."""

    def __init__(self, places: Sequence[int], described: Sequence[Tensor]) -> None:
        self._held = torch.zeros((places[-1] + described[-1].nbytes + 64) if places else 64, dtype=torch.uint8)
        self.memory = memoryview(self._held.numpy())
        self.address = self._held.data_ptr()
