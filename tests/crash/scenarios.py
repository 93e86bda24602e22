"""Directed scenarios: what random runs meet rarely or never. Each returns what was wrong, or None."""

import contextlib
import errno
import random
from collections.abc import Callable

from everstep.store import names
from tests.crash import interleave, workload
from tests.crash.explore import Exploration
from tests.crash.frozen import FrozenDisk
from tests.crash.simdisk import Cut, SimDisk
from tests.crash.states import crash_states
from tests.crash.truth import Truth
from tests.crash.verdict import judge
from tests.crash.workload import Session

FIRST = names.segment(0, 1, 0)
SEEDS = 14
KILLS_MAX = 400


def explored() -> str | None:
    """Random runs, every crash state judged, until one is wrong."""
    for seed in range(SEEDS):
        tally = Exploration(seed, patient=False).run(9)
        if tally.examples:
            return tally.examples[0]
    return None


def refused_then_cut() -> str | None:
    """The same on a disk that now and then refuses a call: what a failed call leaves is met by kill and cut."""
    for seed in range(SEEDS):
        tally = Exploration(seed, faulty=True, patient=False).run(14)
        if tally.examples:
            return tally.examples[0]
    return None


def paused() -> str | None:
    """A writer stands still at any call while others take over, wholly or in part, and then goes on."""
    rng = random.Random(5)
    for work in ("rebase", "roll", "record", "prune"):
        for schedule in _pauses(work, rng):
            if wrong := interleave.Play(work).perform(schedule):
                return f"{work} {schedule}: {wrong}"
    return None


def _pauses(work: str, rng: random.Random) -> list[interleave.Schedule]:
    everything = list(interleave.schedules(work, rng, sampled=0))
    whole = [schedule for schedule in everything if len(schedule) != 4 or schedule[2][0] == "C"]
    rest = [schedule for schedule in everything if schedule not in whole]
    both = [(("A", 0), ("B", j), ("C", interleave.ALL), ("B", interleave.ALL)) for j in range(8, 20)]
    return whole + both + rng.sample(rest, min(len(rest), 260))


def killed_then_cut() -> str | None:
    """A kill after every effect of a short run; the next process goes on from the page cache; then the power goes."""
    for effects in range(1, KILLS_MAX):
        disk, truth, left = SimDisk(), Truth(), [effects]

        def watch(disk: SimDisk = disk, left: list[int] = left) -> None:
            left[0] -= 1
            if left[0] == 0:
                disk.cut = True
                raise Cut

        disk.watch = watch
        with contextlib.suppress(Cut):
            _short_run(disk, truth)
        if left[0] > 0:
            return None
        after = SimDisk(disk.kernel)
        session = Session(after, truth, random.Random(3))
        for moment in ("opened", "trained"):
            for state in crash_states(after, random.Random(4), limit=24, newest_only=False, exhaustive_max=4):
                if wrong := judge(FrozenDisk(state), truth):
                    return f"killed after effect {effects}, {moment}, cut: {wrong}"
            session.commit()
            session.write_records()
            session.note()
    return f"the short run has more than {KILLS_MAX} effects"


def _short_run(disk: SimDisk, truth: Truth) -> None:
    session = Session(disk, truth, random.Random(2))
    for at in range(6):
        session.commit(with_base=at == 3)
        session.write_records()
        session.write_bases()
        session.note()
    session.rebase(skipped=1)
    session.write_records()
    session.write_bases()
    session.note()


def failed_sync() -> str | None:
    """A sync fails once and the kernel forgets the pages: what was not synced must go elsewhere."""
    return _refused("sync")


def failed_write() -> str | None:
    """A write stops half-way: nothing may follow those bytes."""
    return _refused("write")


def failed_check() -> str | None:
    """The look for a successor fails after the sync: the same record must not be written after itself."""
    return _refused("exists")


def _refused(call: str) -> str | None:
    disk, truth, session = _begun()
    armed = [True]

    def refuse(made: str, _path: str) -> None:
        if made != call or not armed:
            return
        armed.clear()
        if call == "write":
            handle = session.keeper._writer._handle
            disk.write(handle, [b"half of a record, or so"])
        raise OSError(errno.EIO, "refused")

    session.commit()
    disk.refuse = refuse
    session.write_records()  # refused
    session.write_records()
    for _ in range(2):
        session.commit()
        session.write_records()
    session.note()
    if truth.promised[1] != session.step:
        return f"step {session.step} was never acknowledged"
    return judge(FrozenDisk(disk.settled()), truth) or judge(FrozenDisk(disk.cached()), truth)


def stopped_while_waiting() -> str | None:
    """The base thread stops the keeper while the log thread waits for a full disk: nothing was written."""
    disk, truth, session = _begun()

    def refuse(made: str, _path: str) -> None:
        if made == "write":
            session.keeper._stop("failed", "the base thread failed")
            raise OSError(errno.ENOSPC, "full")

    session.commit()
    disk.refuse = refuse
    session.keeper._write_records()
    session.note()
    return judge(FrozenDisk(disk.cached()), truth)


def spliced() -> str | None:
    """A whole record of another history of the same epoch, at the right place, with the right step."""
    disk, truth = _history(b"a")
    other, _ = _history(b"b")
    files = disk.settled()
    tail = 64 + 448  # the last record: head and body
    files[FIRST] = files[FIRST][:-tail] + other.settled()[FIRST][-tail:]
    return judge(FrozenDisk(files), truth, lossy=True)


def foreign() -> str | None:
    """The first segment of another run, under our name."""
    disk, truth = _history(b"a")
    real, workload.RUN = workload.RUN, "0dd" + "0" * 29
    try:
        other, _ = _history(b"b")
    finally:
        workload.RUN = real
    files = disk.settled()
    files[FIRST] = other.settled()[FIRST]
    return judge(FrozenDisk(files), truth, lossy=True)


def hole() -> str | None:
    """A log in which a step is missing."""
    disk, truth, session = _begun()
    session.step += 1
    session.commit()
    session.commit()
    session.write_records()
    return judge(FrozenDisk(disk.settled()), truth, lossy=True)


def _begun() -> tuple[SimDisk, Truth, Session]:
    disk, truth = SimDisk(), Truth()
    session = Session(disk, truth, random.Random(2))
    for _ in range(2):
        session.commit()
        session.write_records()
    session.note()
    return disk, truth, session


def _history(letter: bytes) -> tuple[SimDisk, Truth]:
    disk, truth = SimDisk(), Truth()
    session = Session(disk, truth, random.Random(2))
    for step in range(3):
        session._body = lambda step=step: (letter + b"%d" % step) * 224
        session.commit()
        session.write_records()
    session.note()
    return disk, truth


ALL = (
    explored, refused_then_cut, paused, killed_then_cut, failed_sync, failed_write, failed_check,
    stopped_while_waiting, spliced, foreign, hole,
)  # fmt: skip
SCENARIOS: dict[str, Callable[[], str | None]] = {scenario.__name__: scenario for scenario in ALL}
