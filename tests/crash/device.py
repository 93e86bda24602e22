"""A device of the kind that copies later, at moments of its own: what it has been asked for, it does in turn."""

import random
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import torch

from everstep.capture.mover import Target, Tensors
from everstep.ring.ring import Ring
from everstep.types import Tensor
from tests.late import LateMover

COMPLAINT = "gradients wait"


@dataclass(frozen=True, slots=True)
class Device:
    """`bus`: bytes per second. From step `crowded` on it has no memory to spare: gradients wait, nothing is packed."""

    bus: float | None
    crowded: int | None
    seed: int


class RandomMover(LateMover):
    """`LateMover`, but that some of what waits is copied before it has to be."""

    def __init__(self, device: Device) -> None:
        super().__init__(device.bus)
        self._device = device
        self._random = random.Random(device.seed)
        self._steps = 0

    @property
    def full(self) -> bool:
        return self._device.crowded is not None and self._steps >= self._device.crowded

    def take(
        self, what: str, target: Target, described: Sequence[Tensor], places: Sequence[int], tensors: Tensors,
        *, brief: bool, sent: Collection[int] = (),
    ) -> None:  # fmt: skip
        if what == "snapshot" and self.full:
            raise torch.OutOfMemoryError("none is left")
        super().take(what, target, described, places, tensors, brief=brief, sent=sent)
        self._go_on()

    def vouch(self, ring: Ring, sequence: int) -> None:
        super().vouch(ring, sequence)
        self._go_on()

    def settle(self) -> bool:
        self._steps += 1
        self.complaint = COMPLAINT if self.full else None  # type: ignore[assignment]
        return super().settle()

    def _go_on(self) -> None:
        for _ in range(min(self._random.randrange(4), len(self._queue))):
            self._queue.pop(0)()
