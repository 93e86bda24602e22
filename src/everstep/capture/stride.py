"""How much of a state is asked of the bus at a time: as little as brings it there before the optimizer's next step.

Whoever reads a loss waits for what has been asked for, so a little at a time is kind. But the bus stands still for some
tens of microseconds between one portion and the next, for longer beside a program that keeps the driver busy, and how
long that is nobody knows beforehand. So it grows while training has to wait for the last portions of its states.
"""

LEAST_BYTES = 16 << 20
MOST_BYTES = 256 << 20
"""5 ms of a bus of 55 GB/s."""
LATE_SHARE = 0.005
"""Of the time that a state travels: training may wait for so much of it."""
PATIENCE = 2
"""States in a row that must have come late."""


class Stride:
    """Told of each state how long training waited for it."""

    def __init__(self) -> None:
        self.nbytes = LEAST_BYTES
        self._late = 0

    def arrived(self, nbytes: int, waited_seconds: float, travel_seconds: float) -> None:
        """A state that was asked for `nbytes` at a time, and travels for so long on an idle bus."""
        if nbytes != self.nbytes:
            return  # it set out before the last change
        self._late = self._late + 1 if waited_seconds > LATE_SHARE * travel_seconds else 0
        if self._late >= PATIENCE and self.nbytes < MOST_BYTES:
            self.nbytes, self._late = 2 * self.nbytes, 0
