"""Entries whose bytes are still being copied. One counts once the device is done, if nothing it read has changed since.

A state is right if nobody but the optimizer wrote to it; a record, if nobody wrote to its gradients.
"""

from everstep.capture.mover import Mover
from everstep.keeper.link import Link
from everstep.ring.ring import STATE

WRITTEN = "gradients were written to while they were copied; they are packed from now on"
CHANGED = "the program was changed while its state was copied"


class Unsettled:
    """In the order in which they were written."""

    def __init__(self, link: Link, mover: Mover) -> None:
        self._link, self._mover = link, mover
        self._steps: dict[int, tuple[int, bool]] = {}

    def add(self, sequence: int, step: int, alone: bool) -> None:
        """An entry was written, unless its number is -1. Where copies are made at once it counts from now on. `alone`:
        nothing else holds its step."""
        if sequence < 0:
            return
        self._mover.vouch(self._link.ring, sequence)
        if self._mover.lasting:
            self._link.pen.vouch(sequence)
        else:
            self._steps[sequence] = step, alone

    @property
    def sequences(self) -> set[int]:
        return set(self._steps)

    def settle(self, *, sound: bool) -> dict[int, str]:
        """Vouch for those that are right, before training changes what they were read from; the steps that nothing
        holds now, and why. `sound`: nobody but the optimizer has changed the program."""
        untouched, lost = self._mover.settle(), dict[int, str]()
        for sequence, (step, alone) in self._steps.items():
            state = self._link.ring.read(sequence).kind == STATE
            if sound if state else untouched:
                self._link.pen.vouch(sequence)
            else:
                self._link.void(sequence)
                lost |= {step: CHANGED if state else WRITTEN} if alone else {}
        self._steps = {}
        return lost
