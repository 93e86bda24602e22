"""How much of a state is asked of the bus at a time.

Whoever reads a loss waits for what has been asked for, so a little at a time is kind. But the bus stands still for some
tens of microseconds between one portion and the next, for longer beside a program that keeps the driver busy, and a
state that comes late for that is waited for as well. Whether anybody reads anything cannot be seen; most do when a step
is over, and then nothing travels, or what the optimizer has to wait for anyhow. So a portion grows while training waits
for longer than a part of the time it takes: who reads in the middle of every step may lose more than that, not much.
"""

LEAST_BYTES = 16 << 20
MOST_BYTES = 256 << 20
"""5 ms of a bus of 55 GB/s."""
LATE_SHARE = 0.25
"""Of the time that a portion takes: training may wait for so long."""
LATE_STATES = 2
"""In a row, before a portion grows."""
TIMELY_STATES = 32
"""In a row, before it shrinks again: the first steps of a program are like no others. Twice as many each time."""


class Stride:
    """Told of each state how long training waited for it."""

    def __init__(self) -> None:
        self.nbytes = LEAST_BYTES
        self._late = self._timely = 0
        self._patience = TIMELY_STATES

    def arrived(self, nbytes: int, waited_seconds: float, portion_seconds: float) -> None:
        """A state that was asked for `nbytes` at a time, which travel for so long."""
        if nbytes != self.nbytes:
            return  # it set out before the last change
        late = waited_seconds > LATE_SHARE * portion_seconds
        self._late, self._timely = (self._late + 1, 0) if late else (0, self._timely + 1)
        if self._late >= LATE_STATES and self.nbytes < MOST_BYTES:
            self._change(2 * self.nbytes)
        elif self._timely >= self._patience and self.nbytes > LEAST_BYTES:
            self._change(self.nbytes // 2)
            self._patience *= 2

    def _change(self, nbytes: int) -> None:
        self.nbytes, self._late, self._timely = nbytes, 0, 0
