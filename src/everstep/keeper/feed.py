"""From the ring to log and bases: takes whole entries in their order and hands them on.

While the disk keeps up every record goes to the log. When it does not, and memory holds the steps anyway, records are
dropped here as one run of steps, and the disk gets bases only, one after the other, until it may be tried again.
"""

import threading
import time
from collections import deque
from collections.abc import Callable

from everstep.codec import body
from everstep.keeper.buffer import Item
from everstep.keeper.copy import StateCopy
from everstep.keeper.keeper import Keeper
from everstep.log.writer import Record
from everstep.ring import ring as words
from everstep.ring.held import held
from everstep.ring.ring import REBASE, STATE, UPDATE, Entry, Ring
from everstep.store.memory import Block

TRY_AGAIN_SECONDS = 30.0
"""How long a disk that fell behind gets bases only."""
UNKNOWN_DISK_BYTES_PER_S = 400e6
"""What a disk is taken to write before one has been seen to."""
SHARE = 0.7
"""Records may take this part of what the disk can write."""
RATE_RECORDS = 8
LARGE_BYTES = 64 << 20
"""Less than this in so many records, and the disk's cache takes it in passing."""


class Feed:
    """One ring, one keeper, from where the log begins. `pump` may be called by one thread at a time."""

    def __init__(self, ring: Ring, areas: dict[int, Block], keeper: Keeper, first: int, step: int) -> None:
        self._ring, self._areas, self._keeper = ring, areas, keeper
        self._next = first
        self._logged = step
        """How far the log goes, with what was handed to it."""
        self._lock = threading.Lock()
        self._outstanding: dict[int, None] = {}
        self._gap = False
        self._bases_only_until = 0.0
        self._arrivals: deque[tuple[float, int]] = deque(maxlen=RATE_RECORDS)
        ring.say(words.W_RELEASED, first)

    def pump(self) -> bool:
        """Take every whole entry. True while there is one that is not whole yet."""
        ring = self._ring
        while self._next < ring.word(words.W_HEAD):
            if not ring.whole(self._next):
                return True
            self._next += 1
            self._take(ring.read(self._next - 1))
        self._relieve()
        return False

    def catch_up(self, seconds: float) -> None:
        """Whatever memory holds and the disk was spared goes to the disk now, once it has what is on its way."""
        ring = self._ring
        memory = held(ring)
        if memory is None or not self._keeper.idle(seconds) or self._keeper.acknowledged >= memory.step:
            return
        if memory.state.low != memory.state.step or memory.state.area not in self._areas:
            return  # parts of several steps: only a trainer can make one state of them
        ring.say(words.W_ASSIGNED + memory.state.area, memory.state.sequence + 1)
        self._gap, self._bases_only_until = False, 0.0
        self._write_state(memory.state)
        for entry in memory.records:
            if entry.step > self._logged:
                self._write(entry, lambda: None)

    def mind_the_gap(self) -> None:
        """Steps are missing before the next entry: only a base can go on from here."""
        self._gap = True

    def _take(self, entry: Entry) -> None:
        with self._lock:
            self._outstanding[entry.sequence] = None
        assigned = entry.area >= 0 and self._ring.word(words.W_ASSIGNED + entry.area) == entry.sequence + 1
        if entry.kind == STATE and assigned and entry.area in self._areas:
            self._write_state(entry)
        elif assigned:  # it was given up after it had been assigned, or the keeper that had its area died
            self._ring.say(words.W_DONE + entry.area, entry.sequence + 1)
        elif entry.kind in (UPDATE, REBASE):
            if not self._gap and not self._too_much(entry):
                self._write(entry, lambda: self._done(entry.sequence))
                return
            self._dropped(1)
        self._done(entry.sequence)

    def _too_much(self, entry: Entry) -> bool:
        """Whether records come faster than the disk takes them. A large record that is being written would block the
        ring for many steps, so this is found out before, not when the ring is full."""
        if self._ring.word(words.W_MEMORY) == 0:
            return False
        self._arrivals.append((time.monotonic(), sum(nbytes for _, nbytes in entry.extents)))
        seconds = self._arrivals[-1][0] - self._arrivals[0][0]
        nbytes = sum(nbytes for _, nbytes in list(self._arrivals)[1:])
        if len(self._arrivals) < RATE_RECORDS // 2 or nbytes < LARGE_BYTES:
            return False
        rate = self._keeper.bytes_per_s or UNKNOWN_DISK_BYTES_PER_S
        if nbytes <= SHARE * rate * seconds:
            return False
        self._spare_the_disk(entry.step)
        return True

    def _spare_the_disk(self, step: int) -> None:
        self._gap, self._bases_only_until = True, time.monotonic() + TRY_AGAIN_SECONDS
        self._arrivals.clear()
        self._keeper.warn(
            f"the disk takes less than training gives: steps from {step} on are in memory, and on disk as bases",
            kind="dropped",
        )

    def _write(self, entry: Entry, done: Callable[[], None]) -> None:
        pieces = self._ring.pieces(entry)
        nbytes = sum(len(piece) for piece in pieces)
        self._logged = entry.step
        self._keeper.put(Item(Record(entry.kind, entry.step, list(pieces)), nbytes, done), None)

    def _write_state(self, entry: Entry) -> None:
        ring, area = self._ring, entry.area
        pieces = ring.pieces(entry)
        copy = StateCopy(
            entry.step, self._areas[area].memory, pieces, lambda: ring.say(words.W_DONE + area, entry.sequence + 1)
        )
        ring.say(words.W_WANTS_BASE, 0)
        if entry.step <= self._logged and not self._gap:
            self._keeper.put_base(copy)
            return
        self._logged = max(self._logged, entry.step)
        piece = body.head_piece(body.Head((), {}, {}, "", None, ()))
        self._keeper.put(Item(Record(REBASE, entry.step, [piece]), len(piece), lambda: None), copy)
        self._gap = time.monotonic() < self._bases_only_until

    def _relieve(self) -> None:
        """Drop what the disk cannot take in time, if memory holds it; a base will close the gap."""
        ring = self._ring
        if self._gap:
            if not any(ring.busy(area) for area in range(words.AREAS_MAX)):
                ring.say(words.W_WANTS_BASE, 1)
            return
        with self._lock:
            first = next(iter(self._outstanding), None)
        if first is None or ring.word(words.W_MEMORY) == 0:
            return
        if ring.read(self._next - 1).end - ring.read(first).start <= ring.data_bytes // 2:
            return
        steps = self._keeper.drop()
        if steps:
            self._logged = steps[0] - 1
            self._dropped(len(steps))
            self._spare_the_disk(steps[0])

    def _dropped(self, steps: int) -> None:
        self._ring.say(words.W_DROPPED, self._ring.word(words.W_DROPPED) + steps)

    def _done(self, sequence: int) -> None:
        with self._lock:
            self._outstanding.pop(sequence, None)
            self._ring.say(words.W_RELEASED, next(iter(self._outstanding), self._next))
