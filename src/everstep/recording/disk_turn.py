"""When the disk gets a base: once it has written the one before, and at the steps at which other ranks take theirs."""

import time

from everstep.keeper.link import Link
from everstep.recording.program import Program
from everstep.tune.beat import Beat


class DiskTurn:
    """Of one writer. `together`: other ranks write theirs, and a base is of use if it is of a step that all have."""

    def __init__(self, link: Link, program: Program, *, together: bool) -> None:
        self._link, self._program = link, program
        self._beat = Beat(shared=together)
        self._rests_until = 0.0

    def taken(self, step: int, rests_until: float) -> None:
        """A base was handed over. Training waited for it, and is to be left alone for a while."""
        self._beat.began(step)
        self._rests_until = rests_until

    def stepped(self, step: int) -> None:
        """A step has ended. Ranks that are replayed in step need one base for all, whatever the log holds: there the
        beat is as long as it takes a rank until one is due."""
        if self._program.per_parameter:
            self._rest(step)

    def welcome(self, step: int) -> bool:
        """Whether the disk can take a base of this step, for which one is due."""
        self._rest(step)
        return self._beat.on(step) and self._free

    def _rest(self, step: int) -> None:
        if self._beat.busy and self._free:
            self._beat.ended(step)

    @property
    def _free(self) -> bool:
        return not self._link.base_in_hand and time.perf_counter() >= self._rests_until
