"""The trainer's count of what memory holds: which entries have become whole, and what need not be kept any more."""

from collections import deque

from everstep.ring.pen import Pen
from everstep.ring.ring import STATE, UPDATE, W_MEMORY, W_RELEASED, W_WRITERS

LAG_STEPS = 2
"""So far another rank may be behind: a step that it has not committed yet, and one that its device still copies."""


class Tally:
    """Told of every entry as it is written; looks at them again when it is asked."""

    def __init__(self, pen: Pen) -> None:
        self._pen = pen
        self._pending: deque[tuple[int, int, int, int]] = deque()
        self._records: dict[int, int] = {}
        self._memory = -1
        self._keeps = False
        self._lagging: tuple[int, int] | None = None
        """What the newest state needs nothing before, and the step from which on no other rank does either."""
        self.newest = -1
        """The entry of the newest whole state; -1 for none."""

    def adopt(self, newest: int, step: int, records: dict[int, int]) -> None:
        """Go on from what a trainer before us left."""
        self.newest, self._memory, self._records = newest, step, records
        self._pen.keep_from(min([newest, *records.values()]))

    def written(self, sequence: int, kind: int, step: int, low: int) -> None:
        self._pending.append((sequence, kind, step, low))

    def void(self, sequence: int) -> None:
        self._pending = deque(entry for entry in self._pending if entry[0] != sequence)

    @property
    def filling(self) -> bool:
        """Whether a state is on its way, or so new that the one before it is kept as well."""
        return self._lagging is not None or any(kind == STATE for _, kind, _, _ in self._pending)

    def look(self, *, keeps: bool) -> int:
        """The newest step that memory holds. What it needs is kept in the ring, if it `keeps` anything at all."""
        ring = self._pen.ring
        ring.say(W_MEMORY, int(keeps))
        self._keeps = keeps
        released = ring.word(W_RELEASED)  # by the keeper, who had seen it whole: its place may be another's by now
        while self._pending and (self._pending[0][0] < released or ring.whole(self._pending[0][0])):
            sequence, kind, step, low = self._pending.popleft()
            if kind == UPDATE:
                self._records[step] = sequence
            elif kind == STATE and ring.whole(sequence):
                self._stated(sequence, step, low)
        while self.newest >= 0 and self._memory + 1 in self._records:
            self._memory += 1
        if self._lagging is not None and self._memory >= self._lagging[1]:
            self._let_go()
        if not keeps:  # memory promises nothing: the disk alone decides what goes
            self._pen.keep_from(self._pen.next)
        return self._memory

    def stuck(self) -> bool:
        """Whether memory needs the oldest entry, and no newer state is on its way that would let it go. What only other
        ranks might need makes way."""
        self.look(keeps=self._keeps)
        self._let_go()
        return self._pen.kept and not self.filling

    def _stated(self, sequence: int, step: int, low: int) -> None:
        """A state has become whole: nothing before its oldest part is needed here. But ranks that train together resume
        at a step that all of them have, and one may not have come to this state yet."""
        self._let_go()
        self.newest = sequence
        first = self._records.get(low + 1, sequence) if low < step else sequence
        self._records = {at: held for at, held in self._records.items() if at > low}
        self._memory = max(self._memory, step)
        self._lagging = first, step + (LAG_STEPS if self._pen.ring.word(W_WRITERS) > 1 else 0)

    def _let_go(self) -> None:
        if self._lagging is not None:
            self._pen.keep_from(self._lagging[0])
            self._lagging = None
