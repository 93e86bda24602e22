"""Host memory that is used again and again. Fresh pages cost five times as much as the copy into them."""

import ctypes
import mmap
import threading
from collections.abc import Sequence

import torch

from everstep import native
from everstep.capture.tensors import plain, view
from everstep.types import Tensor, padded


class Slot:
    """One block of memory; `release` gives it back to its pool."""

    def __init__(self, pool: "Slots", nbytes: int) -> None:
        self._pool = pool
        self._map = mmap.mmap(-1, max(nbytes, mmap.PAGESIZE))
        self.memory = memoryview(self._map)
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self._map))
        self.nbytes = len(self._map)

    def release(self) -> None:
        self._pool.put(self)


class Slots:
    """The free blocks. Keeps at most `idle_bytes_max` of them, the latest; safe between threads."""

    def __init__(self, idle_bytes_max: int) -> None:
        self._idle_bytes_max = idle_bytes_max
        self._free: list[Slot] = []
        self._lock = threading.Lock()

    def take(self, nbytes: int) -> Slot:
        with self._lock:
            fitting = [slot for slot in self._free if nbytes <= slot.nbytes <= 2 * nbytes + mmap.PAGESIZE]
            if fitting:
                slot = min(fitting, key=lambda slot: slot.nbytes)
                self._free.remove(slot)
                return slot
        return Slot(self, nbytes)

    def put(self, slot: Slot) -> None:
        with self._lock:
            self._free.append(slot)
            while sum(free.nbytes for free in self._free) > self._idle_bytes_max:
                self._free.pop(0)


def offsets(described: Sequence[Tensor]) -> tuple[list[int], int]:
    """Where each tensor goes in one block, aligned, and the block's length."""
    places, end = [], 0
    for tensor in described:
        places.append(end)
        end += padded(tensor.nbytes)
    return places, end


def copy_in(slot: Slot, described: Sequence[Tensor], places: Sequence[int], tensors: Sequence[torch.Tensor]) -> None:
    """Copy the tensors' bytes, in logical order, to their places; zeros fill the gaps between them."""
    near = [at for at, tensor in enumerate(tensors) if plain(tensor)]
    native.gather(
        [tensors[at].data_ptr() for at in near],
        [described[at].nbytes for at in near],
        slot.address,
        [places[at] for at in near],
        torch.get_num_threads(),
    )
    for at in set(range(len(tensors))) - set(near):
        part = slot.memory[places[at] : places[at] + described[at].nbytes]
        view(part, described[at]).copy_(tensors[at].detach())
    for place, tensor in zip(places, described, strict=True):
        if gap := padded(tensor.nbytes) - tensor.nbytes:
            slot.memory[place + tensor.nbytes : place + tensor.nbytes + gap] = bytes(gap)
