"""Entries whose bytes are still being copied. One counts once the device is done, if nothing it read has changed since.

A state is right if nobody but the optimizer wrote to it; a record, if nobody wrote to its gradients.
"""

from everstep.capture.mover import Mover
from everstep.keeper.link import Link
from everstep.ring.ring import STATE


class Unsettled:
    """In the order in which they were written."""

    def __init__(self, link: Link, mover: Mover) -> None:
        self._link, self._mover = link, mover
        self._steps: dict[int, int] = {}

    def add(self, sequence: int, step: int) -> None:
        """An entry was written, unless its number is -1. Where copies are made at once it counts from now on."""
        if sequence < 0:
            return
        self._mover.vouch(self._link.ring, sequence)
        if self._mover.lasting:
            self._link.pen.vouch(sequence)
        else:
            self._steps[sequence] = step

    @property
    def sequences(self) -> set[int]:
        return set(self._steps)

    def settle(self, *, sound: bool) -> list[int]:
        """Vouch for those that are right, before training changes what they were read from; the steps whose records are
        not. `sound`: nobody but the optimizer has changed the program."""
        untouched, lost = self._mover.settle(), []
        for sequence, step in self._steps.items():
            state = self._link.ring.read(sequence).kind == STATE
            if sound if state else untouched:
                self._link.pen.vouch(sequence)
            else:
                self._link.void(sequence)
                lost += [] if state else [step]
        self._steps = {}
        return lost
