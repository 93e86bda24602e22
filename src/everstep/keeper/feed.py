"""From the ring to log and bases: takes whole entries in their order and hands them on.

While the disk keeps up every record goes to the log. When it does not, and memory holds the steps anyway, records are
dropped here as one run of steps, and the disk gets bases only, one after the other, until it may be tried again.
"""

import threading
import time
from collections.abc import Callable
from functools import partial

from everstep.codec import body
from everstep.keeper.admission import Admission
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
        self._admission = Admission()
        self._waiting: list[Entry] = []
        """Records of which it is not known yet whether the disk is to have them."""
        ring.say(words.W_RELEASED, first)

    def pump(self) -> bool:
        """Take every whole entry. True while there is one that is not whole yet."""
        ring = self._ring
        while self._next < ring.word(words.W_HEAD):
            if not ring.whole(self._next):
                return True
            self._next += 1
            self._take(ring.read(self._next - 1))
        self._admit()
        self._relieve()
        return False

    def catch_up(self, seconds: float) -> None:
        """Whatever memory holds and the disk was spared goes to the disk now, once it has what is on its way."""
        ring = self._ring
        self._write_waiting()
        memory = held(ring)
        if memory is None or not self._keeper.idle(seconds) or self._keeper.acknowledged >= memory.step:
            return
        if memory.state.low != memory.state.step or memory.state.area not in self._areas:
            return  # parts of several steps: only a trainer can make one state of them
        ring.say(words.W_ASSIGNED + memory.state.area, memory.state.sequence + 1)
        self._gap, self._bases_only_until = False, 0.0
        self._write_state(memory.state)
        for entry in memory.records:
            self._write(entry, lambda: None)

    @property
    def newest(self) -> int:
        """The newest step that was taken for the log."""
        return max([self._logged, *(entry.step for entry in self._waiting)])

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
        elif entry.kind in (UPDATE, REBASE) and self._gap:
            self._dropped(1)
        elif entry.kind in (UPDATE, REBASE):
            self._waiting.append(entry)
            self._admission.arrived(sum(nbytes for _, nbytes in entry.extents), time.monotonic())
            self._admit()
            return
        self._done(entry.sequence)

    def _admit(self) -> None:
        """Decide about the records that wait. Where memory holds nothing, the disk gets them whatever it takes."""
        if not self._waiting:
            return
        verdict = self._admission.verdict(self._keeper.bytes_per_s, time.monotonic())
        if verdict == "write" or self._ring.word(words.W_MEMORY) == 0:
            self._write_waiting()
        elif verdict == "spare":
            self._spare_the_disk(self._drop_waiting()[0])

    def _write_waiting(self) -> None:
        for entry in self._waiting:
            self._write(entry, partial(self._done, entry.sequence))
        self._waiting = []

    def _drop_waiting(self) -> list[int]:
        """The steps that the disk does not get."""
        waiting, self._waiting = self._waiting, []
        for entry in waiting:
            self._done(entry.sequence)
        self._dropped(len(waiting))
        return [entry.step for entry in waiting]

    def _spare_the_disk(self, step: int) -> None:
        self._gap, self._bases_only_until = True, time.monotonic() + TRY_AGAIN_SECONDS
        self._admission.clear()
        self._keeper.warn(
            f"the disk takes less than training gives: steps from {step} on are in memory, and on disk as bases",
            kind="dropped",
        )

    def _write(self, entry: Entry, done: Callable[[], None]) -> None:
        """Once: a state that comes to the disk again, because a keeper died with it, brings its record along."""
        if entry.step <= self._logged:
            done()
            return
        pieces = body.shared(self._ring.pieces(entry), name=f"record of step {entry.step}")
        nbytes = sum(memoryview(piece).nbytes for piece in pieces)
        self._logged = entry.step
        self._keeper.put(Item(Record(entry.kind, entry.step, pieces), nbytes, done), None)

    def _write_state(self, entry: Entry) -> None:
        ring, area = self._ring, entry.area
        pieces = ring.pieces(entry)
        copy = StateCopy(
            entry.step, self._areas[area].memory, pieces, lambda: ring.say(words.W_DONE + area, entry.sequence + 1)
        )
        ring.say(words.W_WANTS_BASE, 0)
        self._drop_waiting()  # the base holds more than they do
        if entry.step <= self._logged:
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
        dropped = self._keeper.drop()
        self._dropped(len(dropped))
        if steps := dropped + self._drop_waiting():
            self._logged = steps[0] - 1
            self._spare_the_disk(steps[0])

    def _dropped(self, steps: int) -> None:
        self._ring.say(words.W_DROPPED, self._ring.word(words.W_DROPPED) + steps)

    def _done(self, sequence: int) -> None:
        with self._lock:
            self._outstanding.pop(sequence, None)
            self._ring.say(words.W_RELEASED, next(iter(self._outstanding), self._next))
