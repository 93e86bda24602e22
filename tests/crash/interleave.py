"""Two or three writers on one disk, every call of one between every two calls of the other (P7).

Each writer is a thread that stands still between its Disk calls until the schedule lets it go on; only one ever runs.
"""

import itertools
import random
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from everstep.errors import Fenced, RunInUse
from tests.crash.frozen import FrozenDisk
from tests.crash.simdisk import SimDisk
from tests.crash.truth import Truth
from tests.crash.verdict import judge
from tests.crash.workload import Session

ALL = 1 << 30
DEADLINE_SECONDS = 60.0
WORKS = ("record", "roll", "base", "rebase", "prune")

Schedule = tuple[tuple[str, int], ...]


@dataclass(slots=True)
class Party:
    """One writer's thread. `calls` counts its Disk calls, `fenced` says whether it was told to stop."""

    work: Callable[[], None]
    calls: int = 0
    fenced: bool = False
    failure: BaseException | None = None
    done: bool = False
    _budget: int = 0
    _go: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    _stopped: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))

    def pass_through(self, call: str, path: str) -> None:
        if self._budget == 0:
            self._stopped.release()
            self._go.acquire()
        self._budget -= 1
        self.calls += 1

    def advance(self, calls: int) -> None:
        """Let it make so many more calls, or end."""
        if self.done:
            return
        self._budget = calls
        if not self.calls and self.failure is None and not self._started:
            self._started = True
            threading.Thread(target=self._run, daemon=True).start()
        else:
            self._go.release()
        assert self._stopped.acquire(timeout=DEADLINE_SECONDS), "a writer hangs"

    _started: bool = False

    def _run(self) -> None:
        try:
            self.work()
        except Fenced:
            self.fenced = True
        except BaseException as failure:  # noqa: BLE001 the schedule's owner looks at it
            self.failure = failure
        self.done = True
        self._stopped.release()


@dataclass(slots=True)
class Play:
    """A run with an owner, A, in the middle of `work`, and others that take it over."""

    work: str
    truth: Truth = field(default_factory=Truth)
    parties: dict[str, Party] = field(default_factory=dict)
    sessions: dict[str, Session] = field(default_factory=dict)
    disk: SimDisk = field(default_factory=SimDisk)

    def __post_init__(self) -> None:
        first = Session(self.disk, self.truth, random.Random(1))
        for at in range(6 if self.work == "prune" else 2):
            first.commit(with_base=self.work == "prune" and at % 2 == 1)
            first.write_records()
            first.write_bases()
        while self.work == "roll" and first.keeper._writer._offset < first.keeper._writer._segment_bytes:
            first.commit()
            first.write_records()
        first.note()
        self.sessions["A"] = first
        self.parties["A"] = Party(lambda: self._continue("A", self.work))
        self.disk.refuse = self.parties["A"].pass_through
        for name in "BC":
            other = self.disk.neighbour()
            self.parties[name] = Party(lambda name=name, other=other: self._take_over(name, other))
            other.refuse = self.parties[name].pass_through

    def perform(self, schedule: Schedule) -> str | None:
        """Run the schedule; what is wrong afterwards, or None."""
        for name, calls in schedule:
            self.parties[name].advance(calls)
        for party in self.parties.values():
            if isinstance(party.failure, RunInUse):  # of two that take over at once, one may be told to wait
                continue
            party_failed = party.failure is not None and not isinstance(party.failure, OSError)
            if party_failed or (party.failure is not None and party is not self.parties["A"]):
                return f"a writer failed: {type(party.failure).__name__}: {party.failure}"
        for party in self.parties.values():
            party._budget = ALL
        return self._both_acknowledged() or self._lost()

    def _continue(self, name: str, work: str) -> None:
        session = self.sessions[name]
        if work == "rebase":
            session.rebase(skipped=0)
        else:
            session.commit(with_base=work in ("base", "prune"))
        try:
            if work in ("base", "prune"):
                session.write_bases()
                session.note()
            session.write_records()
            session.write_bases()  # of a rebase: its record waits for this base to be acknowledged
        finally:
            session.note()

    def _take_over(self, name: str, disk: SimDisk) -> None:
        self.sessions[name] = Session(disk, self.truth, random.Random(ord(name)), take_over=True)
        self._continue(name, "record")

    def _both_acknowledged(self) -> str | None:
        """What a writer acknowledged is part of every later writer's history."""
        truth = self.truth
        opened = sorted(session.epoch for session in self.sessions.values())
        for older, newer in itertools.pairwise(opened):
            step = truth.promised[older]
            if step >= 0 and truth.states[newer].get(step) != truth.states[older][step]:
                return f"step {step}, acknowledged in epoch {older}, is not in epoch {newer}'s history"
        return None

    def _lost(self) -> str | None:
        for left, files in (("cache", self.disk.cached()), ("power cut", self.disk.settled())):
            if wrong := judge(FrozenDisk(files), self.truth):
                return f"{left}: {wrong}"
        return None


def lengths(work: str) -> tuple[int, int]:
    """How many Disk calls A still makes, and B when it takes over after that."""
    play = Play(work)
    assert play.perform((("A", ALL), ("B", ALL))) is None
    return play.parties["A"].calls, play.parties["B"].calls


def schedules(work: str, rng: random.Random, *, sampled: int) -> Iterator[Schedule]:
    """A paused anywhere while B takes over, up to anywhere; then samples with one more switch, and a third writer."""
    a, b = lengths(work)
    for i in range(a + 1):
        yield ("A", i), ("B", ALL), ("A", ALL)
        yield ("A", i), ("B", ALL), ("C", ALL), ("A", ALL)
    for i, j in itertools.product(range(a + 1), range(1, b)):
        yield ("A", i), ("B", j), ("A", ALL), ("B", ALL)
    for _ in range(sampled):
        i, j, k = rng.randrange(a), rng.randrange(1, b), rng.randrange(1, a + 1)
        yield ("A", i), ("B", j), ("A", k), ("B", ALL), ("A", ALL)
        yield ("A", i), ("B", j), ("C", ALL), ("A", k), ("B", ALL), ("A", ALL)


def enumerate_plays(work: str, rng: random.Random, *, sampled: int, share: float = 1.0) -> tuple[int, list[str]]:
    """(schedules run, what was wrong). `share` below 1 runs a random part of them."""
    count, wrongs = 0, []
    for schedule in schedules(work, rng, sampled=sampled):
        if share < 1.0 and rng.random() > share:
            continue
        count += 1
        if wrong := Play(work).perform(schedule):
            wrongs.append(f"{work} {schedule}: {wrong}")
    return count, wrongs
