"""Brings tensors' bytes into memory that outlives this process. From host memory: at once, on all threads."""

from collections.abc import Sequence
from typing import Protocol

import torch

from everstep import native
from everstep.capture.tensors import plain, view
from everstep.ring.ring import E_DEVICE, Ring
from everstep.store.memory import Block
from everstep.types import Tensor, padded


class Target(Protocol):
    """Bytes of a ring or an area."""

    @property
    def memory(self) -> memoryview: ...
    @property
    def address(self) -> int: ...


class Mover(Protocol):
    """How bytes leave the trainer. Copies may finish later; `vouch` says so in the ring, in their order."""

    def pin(self, block: Block) -> None:
        """Make the block fit for the device's own copies."""

    def copy(
        self, target: Target, described: Sequence[Tensor], places: Sequence[int], tensors: Sequence[torch.Tensor]
    ) -> None:
        """Copy the tensors' bytes, in logical order, to their places. The tensors may change after `settle`."""

    def vouch(self, ring: Ring, sequence: int) -> None:
        """Once everything copied so far is there, say so in this entry."""

    def settle(self) -> None:
        """Nothing of this process may change what is being copied before it has been copied."""

    def synchronize(self) -> None:
        """Wait until everything is there."""


class HostMover:
    """`Mover` for tensors in host memory, and for all others where nobody is in a hurry: copied when this returns."""

    def pin(self, block: Block) -> None:
        pass

    def copy(
        self, target: Target, described: Sequence[Tensor], places: Sequence[int], tensors: Sequence[torch.Tensor]
    ) -> None:
        near = [at for at, tensor in enumerate(tensors) if plain(tensor)]
        native.gather(
            [tensors[at].data_ptr() for at in near],
            [described[at].nbytes for at in near],
            target.address,
            [places[at] for at in near],
            torch.get_num_threads(),
        )
        for at in set(range(len(tensors))) - set(near):
            part = target.memory[places[at] : places[at] + described[at].nbytes]
            view(part, described[at]).copy_(tensors[at].detach())
        fill_gaps(target.memory, described, places)

    def vouch(self, ring: Ring, sequence: int) -> None:
        ring.vouch(sequence, E_DEVICE)

    def settle(self) -> None:
        pass

    def synchronize(self) -> None:
        pass


def offsets(described: Sequence[Tensor]) -> tuple[list[int], int]:
    """Where each tensor goes in one block, aligned, and the block's length."""
    places, end = [], 0
    for tensor in described:
        places.append(end)
        end += padded(tensor.nbytes)
    return places, end


def fill_gaps(memory: memoryview, described: Sequence[Tensor], places: Sequence[int]) -> None:
    """Zeros between the tensors: the memory was used before."""
    for place, tensor in zip(places, described, strict=True):
        if gap := padded(tensor.nbytes) - tensor.nbytes:
            memory[place + tensor.nbytes : place + tensor.nbytes + gap] = bytes(gap)
