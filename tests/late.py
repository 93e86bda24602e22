"""A mover that copies as a device does, later: what it reads is read when training is about to change it."""

from collections.abc import Callable, Collection, Sequence

import torch

from everstep.capture.mover import HostMover, Parcel, Target, Tensors
from everstep.ring.ring import E_DEVICE, Ring
from everstep.store.memory import Block
from everstep.types import Tensor


class LateMover:
    """`Mover` without a GPU. Copies wait until `settle` or `synchronize`; words come in their order."""

    lasting = False
    waited_seconds = 0.0
    complaint = None

    def __init__(self, bus_bytes_per_s: float | None = None) -> None:
        self.bus_bytes_per_s = bus_bytes_per_s
        self._now = HostMover()
        self._queue: list[Callable[[], None]] = []
        self.pinned: list[int] = []
        self.untouched = True
        self.early = 0
        """Gradients that were sent during backward and had not changed since."""

    def rehearse(self, dtypes: Collection[torch.dtype], *, rounds: bool) -> None:
        assert dtypes
        del rounds

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
        *, brief: bool, sent: Collection[int] = (),
    ) -> None:  # fmt: skip
        self._now.take(what, _Nowhere(places, described), described, places, tensors, brief=brief)
        rest = [at for at in range(len(tensors)) if at not in sent or brief]
        self.early += len(tensors) - len(rest)
        self.send(target, *([items[at] for at in rest] for items in (described, places, tensors)))  # type: ignore[arg-type]

    def in_place(self, what: str) -> bool:
        del what
        return True

    def send(self, target: Target, described: Sequence[Tensor], places: Sequence[int], tensors: Tensors) -> None:
        held = [tensor.detach().clone() for tensor in tensors]  # as early as it may be read
        self._queue.append(lambda: self._now.take("", target, described, places, held, brief=True))

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
