"""Brings tensors' bytes into memory that outlives this process. From host memory: at once, on all threads."""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from everstep import native
from everstep.capture.tensors import plain, view
from everstep.ring.ring import E_DEVICE, Ring
from everstep.store.memory import Block
from everstep.types import Tensor, padded

Tensors = Sequence[torch.Tensor]
ROUNDED_AT_ONCE = 4 << 20


class Target(Protocol):
    """Bytes of a ring or an area."""

    @property
    def memory(self) -> memoryview: ...
    @property
    def address(self) -> int: ...


@dataclass(frozen=True, slots=True, weakref_slot=True, eq=False)
class Parcel:
    """Tensors that travel together again and again: what they are, and where they go in their target."""

    described: Sequence[Tensor]
    places: Sequence[int]
    tensors: Tensors


class Mover(Protocol):
    """How bytes leave the trainer. Copies may finish later; `vouch` says so in the ring, in their order."""

    @property
    def lasting(self) -> bool:
        """Whether everything is copied when a call returns: then nothing has to be confirmed later."""

    @property
    def bus_bytes_per_s(self) -> float | None:
        """How fast copies are that training does not wait for; None where it does."""

    @property
    def waited_seconds(self) -> float:
        """How long the device has held training back until a copy was done, as far as it has told."""

    @property
    def complaint(self) -> str | None:
        """What makes training wait, and what to do about it."""

    def rehearse(self, dtypes: Collection[torch.dtype], *, rounds: bool) -> None:
        """Have at hand what tensors of these types need: on a device it takes a while to make ready."""

    def pin(self, block: Block) -> None:
        """Make the block fit for the device's own copies."""

    def unpin(self, block: Block) -> None:
        """The block is about to go."""

    def copy(self, target: Target, parcel: Parcel) -> None:
        """Copy the tensors' bytes, in logical order, to their places. They must not change before `settle`."""

    def take(
        self, what: str, target: Target, described: Sequence[Tensor], places: Sequence[int], tensors: Tensors,
        *, brief: bool, sent: Collection[int] = (),
    ) -> None:  # fmt: skip
        """The same for tensors that change soon: gradients, or, if `brief`, what the next forward pass changes.

        Float32 tensors that are described as BF16 are rounded, in place as well. `what` names the set; those `sent`
        are on their way to the same target, as they are now.
        """

    def in_place(self, what: str) -> bool:
        """Whether the tensors of this set were read where they lie, the last time; such may be sent early."""

    def send(self, target: Target, described: Sequence[Tensor], places: Sequence[int], tensors: Tensors) -> None:
        """Gradients during backward. Who changes one sends it again."""

    def vouch(self, ring: Ring, sequence: int) -> None:
        """Once everything copied so far is there, say so in this entry."""

    def settle(self) -> bool:
        """What was copied may change from now on. Whether what was taken is as it was when it was taken."""

    def synchronize(self) -> None:
        """Wait until everything is there."""

    def release(self) -> None:
        """The blocks are not used any more."""


class HostMover:
    """`Mover` for tensors in host memory, and for all others where nobody is in a hurry: copied when this returns."""

    lasting = True
    bus_bytes_per_s = None
    waited_seconds = 0.0
    complaint = None

    def rehearse(self, dtypes: Collection[torch.dtype], *, rounds: bool) -> None:
        pass

    def pin(self, block: Block) -> None:
        pass

    def unpin(self, block: Block) -> None:
        pass

    def copy(self, target: Target, parcel: Parcel) -> None:
        described, places, tensors = parcel.described, parcel.places, parcel.tensors
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
        fill(target.memory, gaps(described, places))

    def take(
        self, what: str, target: Target, described: Sequence[Tensor], places: Sequence[int], tensors: Tensors,
        *, brief: bool, sent: Collection[int] = (),
    ) -> None:  # fmt: skip
        del what, brief, sent
        self.copy(target, Parcel(described, places, list(map(rounded, tensors, described))))

    def in_place(self, what: str) -> bool:
        del what
        return False  # a copy takes as long during backward as after it

    def send(self, target: Target, described: Sequence[Tensor], places: Sequence[int], tensors: Tensors) -> None:
        self.copy(target, Parcel(described, places, tensors))

    def vouch(self, ring: Ring, sequence: int) -> None:
        ring.vouch(sequence, E_DEVICE)

    def settle(self) -> bool:
        return True

    def synchronize(self) -> None:
        pass

    def release(self) -> None:
        pass


def mover(parameters: Iterable[torch.Tensor]) -> Mover:
    """Copies are made beside training where that runs on one CUDA device, elsewhere at once."""
    devices = {parameter.device for parameter in parameters}
    if {device.type for device in devices} != {"cuda"} or len(devices) > 1:
        return HostMover()
    from everstep.capture.device import DeviceMover

    return DeviceMover(devices.pop())


def rounded(tensor: torch.Tensor, told: Tensor) -> torch.Tensor:
    """The tensor, or where it is described as BF16 its bfloat16 values, which are put into it as well."""
    if told.dtype != "BF16" or tensor.dtype is not torch.float32:
        return tensor
    found = tensor.detach().to(torch.bfloat16)
    tensor.detach().copy_(found)
    return found


def round_off(tensor: torch.Tensor) -> None:
    """Give a float32 tensor its bfloat16 values, where nobody keeps these. Hardly any memory is taken for it."""
    held = tensor.detach()
    for part in torch.split(held.view(-1), ROUNDED_AT_ONCE) if held.is_contiguous() else (held,):
        part.copy_(part.to(torch.bfloat16))


def offsets(described: Sequence[Tensor]) -> tuple[list[int], int]:
    """Where each tensor goes in one block, aligned, and the block's length."""
    return aligned([tensor.nbytes for tensor in described])


def aligned(sizes: Sequence[int]) -> tuple[list[int], int]:
    """The same for so many bytes each."""
    places, end = [], 0
    for size in sizes:
        places.append(end)
        end += padded(size)
    return places, end


def gaps(described: Sequence[Tensor], places: Sequence[int]) -> list[tuple[int, int]]:
    """What lies between the tensors: where, and how many bytes."""
    ends = [(place + tensor.nbytes, padded(tensor.nbytes) - tensor.nbytes)
            for place, tensor in zip(places, described, strict=True)]  # fmt: skip
    return [(at, count) for at, count in ends if count]


def fill(memory: memoryview, between: Sequence[tuple[int, int]]) -> None:
    """Zeros there: the memory was used before."""
    for at, count in between:
        memory[at : at + count] = bytes(count)
