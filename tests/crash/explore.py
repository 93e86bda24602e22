"""Random runs on a simulated disk, and after every effect every crash that could happen there."""

import errno
import os
import random
import socket
from collections import Counter
from dataclasses import dataclass, field

from everstep.errors import EverstepError
from everstep.store import names
from tests.crash.frozen import FrozenDisk
from tests.crash.mutation import swapped
from tests.crash.simdisk import Cut, SimDisk, Write
from tests.crash.states import crash_states
from tests.crash.truth import Truth
from tests.crash.verdict import judge
from tests.crash.workload import Session

ACTIONS = (
    ("commit", 8), ("batch", 5), ("base", 4), ("base first", 2), ("rebase", 2), ("gap", 2), ("close", 2), ("kill", 2),
    ("power", 2), ("kill within", 4), ("power within", 4), ("branch", 1), ("take over", 1),
)  # fmt: skip
REFUSED = ("create", "write", "sync", "rename", "link", "sync_dir")
POINT_LIMIT = 48
DRAFT_LIMIT = 12
CONTINUE_EVERY = 150
AGAIN_EVERY = 40
VIOLATIONS_KEPT = 5


@dataclass(slots=True)
class Tally:
    """What an exploration saw."""

    states: int = 0
    points: int = 0
    continued: int = 0
    calls: Counter[str] = field(default_factory=Counter)
    violations: int = 0
    examples: list[str] = field(default_factory=list)

    def add(self, other: "Tally") -> None:
        self.states += other.states
        self.points += other.points
        self.continued += other.continued
        self.calls += other.calls
        self.violations += other.violations
        self.examples = (self.examples + other.examples)[:VIOLATIONS_KEPT]


class Exploration:
    """One seed: a run of random actions, with its crash states judged on the way."""

    def __init__(
        self, seed: int, *, lossy: bool = False, faulty: bool = False, patient: bool = True, exhaustive_max: int = 6
    ) -> None:
        self._seed = seed
        self._exhaustive_max = exhaustive_max
        self._rng = random.Random(seed)
        self._lossy, self._faulty = lossy, faulty
        self._patient = patient
        self._truth = Truth()
        self._session: Session | None = None
        self._cut_after = 0
        self._promise: tuple[int, int] | None = None
        self.tally = Tally()
        self._disk = self._watched(SimDisk())

    def run(self, actions: int) -> Tally:
        """The same for the same seed, on any machine: process, host and draft names are the seed's, too."""
        names_of = random.Random(self._seed)
        with (
            swapped(os, "urandom", names_of.randbytes),
            swapped(os, "getpid", lambda: 4711),
            swapped(socket, "gethostname", lambda: "sim"),
        ):
            return self._run(actions)

    def _run(self, actions: int) -> Tally:
        chosen = self._rng.choices([name for name, _ in ACTIONS], [weight for _, weight in ACTIONS], k=actions)
        try:
            self._lived(self._open)
            for action in chosen:
                if self._lossy and action in ("power", "power within", "kill", "kill within", "branch"):
                    continue  # after such a loss the workload has nothing to go on from
                self.tally.calls[action] += 1
                self._act(action)
                if self.tally.violations and not self._patient:
                    break
        except EverstepError as refused:
            self._violation(f"the run could not go on: {type(refused).__name__}: {refused}")
        except Exception as failed:  # noqa: BLE001 a crash of our own code is a finding
            self._violation(f"the run failed: {type(failed).__name__}: {failed}")
        return self.tally

    # Actions.

    def _act(self, action: str) -> None:
        if action.endswith("within"):
            self._cut_after = self._rng.randrange(1, 40)
            self._guarded(self._anything)
            self._restart(power=action.startswith("power"))
        elif action in ("kill", "power"):
            self._restart(power=action == "power")
        elif action == "branch":
            self._lived(lambda: self._close_and_open(step=self._older()))
        elif action == "close":
            self._lived(self._close_and_open)
        elif action == "take over":
            self._lived(self._take_over)
        else:
            self._lived(lambda: self._train(action))

    def _anything(self) -> None:
        """Work until the cut comes."""
        while self._cut_after > 0:
            action = self._rng.choice(("commit", "batch", "base", "base first", "rebase", "gap", "close"))
            if action == "close":
                self._close_and_open()
            else:
                self._train(action)

    def _train(self, action: str) -> None:
        session = self._session
        assert session is not None
        if action in ("rebase", "gap"):
            session.rebase(skipped=self._rng.randrange(1, 3) if action == "gap" else 0)
        for _ in range(self._rng.randrange(2, 4) if action == "batch" else 1):
            session.commit(with_base=False)
        if action.startswith("base"):
            session.commit(with_base=True)
        if action == "base first" or self._rng.random() < 0.3:
            session.write_bases()
        session.write_records()
        session.write_bases()
        self._checked()

    def _open(self, step: int | None = None, *, take_over: bool = False) -> None:
        self._session = None
        self._session = Session(self._disk, self._truth, self._rng, step=step, take_over=take_over)
        self._checked()

    def _close_and_open(self, step: int | None = None) -> None:
        if self._session is not None:
            self._session.close()
        self._disk = self._watched(self._next(self._disk))
        self._open(step)

    def _take_over(self) -> None:
        """Another process takes the run; the one before is paused for good."""
        self._disk = self._watched(self._disk.neighbour())
        self._open(take_over=True)

    def _restart(self, *, power: bool) -> None:
        """End the process, with or without the machine, and begin another; should that one be cut too, once more."""
        if self._session is not None:
            self._session.note()
        self._disk.cut = True
        kept = self._disk
        if power:
            possible = list(crash_states(kept, self._rng, limit=40, newest_only=False, exhaustive_max=4))
            kept = SimDisk.of(self._rng.choice(possible or [kept.settled()]))
        self._disk = self._watched(self._next(kept))
        self._cut_after = self._rng.randrange(1, 30) if self._rng.random() < 0.3 else 0
        if not self._guarded(self._open):
            self._restart(power=self._rng.random() < 0.5)

    def _lived(self, work: object) -> None:
        """Do it; should the process end over it, begin another."""
        if not self._guarded(work):
            self._restart(power=self._rng.random() < 0.5)

    def _guarded(self, work: object) -> bool:
        """Do it; False when the cut came."""
        try:
            work()  # type: ignore[operator]
        except Cut:
            return False
        except OSError:
            if not self._faulty:
                raise
            self._disk.cut = True  # opening failed; whoever called it ends, and begins anew
            return False
        finally:
            self._cut_after = 0
        return True

    def _next(self, disk: SimDisk) -> SimDisk:
        return SimDisk(disk.kernel)

    def _watched(self, disk: SimDisk) -> SimDisk:
        disk.watch = lambda: self._point(disk)
        if self._lossy:
            disk.drops = lambda: self._rng.random() < 0.15
        if self._faulty:
            disk.refuse = self._refuse
        return disk

    def _refuse(self, call: str, path: str) -> None:
        if call in REFUSED and not path.endswith("lease") and self._rng.random() < 0.03:
            raise OSError(errno.EIO, "refused", path)

    def _older(self) -> int | None:
        """A step to go back to, that the run still holds."""
        session = self._session
        if session is None or session.keeper is None:
            return None
        bases = [entry.step for entry in session.keeper._book.manifest.bases if entry.epoch == session.epoch]
        held = [step for step in bases if step <= session.keeper.acknowledged]
        return self._rng.choice(held) if held else None

    # Crash points.

    def _point(self, disk: SimDisk) -> None:
        """An effect was added: judge what a crash right here can leave."""
        if disk is not self._disk:
            return
        newest = disk.kernel.effects[-1]
        draft = isinstance(newest, Write) and _is_draft(disk, newest.inode)
        self._judge_all(disk, limit=DRAFT_LIMIT if draft else POINT_LIMIT, newest_only=True)
        if self._cut_after > 0:
            self._cut_after -= 1
            if self._cut_after == 0:
                disk.cut = True
                raise Cut

    def _checked(self) -> None:
        """No effect, but more may be promised now than when these states were last judged."""
        self._judge_all(self._disk, limit=POINT_LIMIT, newest_only=False)

    def _judge_all(self, disk: SimDisk, *, limit: int, newest_only: bool) -> None:
        if self._session is not None:
            self._session.note()
        promise = (self._truth.floor or 0, self._truth.promised.get(self._truth.floor or 0, -1))
        newest_only = newest_only and promise == self._promise
        self._promise = promise
        self.tally.points += 1
        for files in crash_states(
            disk, self._rng, limit=limit, newest_only=newest_only, exhaustive_max=self._exhaustive_max
        ):
            self.tally.states += 1
            wrong = judge(FrozenDisk(files), self._truth, lossy=self._lossy)
            if wrong is None and self.tally.states % AGAIN_EVERY == 0:
                wrong = judge(FrozenDisk(files), self._truth, lossy=self._lossy)
            if wrong is None and self.tally.states % CONTINUE_EVERY == 0 and not self._lossy:
                wrong = self._continue(files)
            if wrong is not None:
                self._violation(wrong)
                return

    def _continue(self, files: dict[str, bytes]) -> str | None:
        """Open what the crash left, train on, and look again."""
        self.tally.continued += 1
        disk, truth = SimDisk.of(files), self._truth.copy()
        session = Session(disk, truth, self._rng)
        session.commit()
        session.write_records()
        session.commit(with_base=True)
        session.write_records()
        session.write_bases()
        session.note()
        session.close()
        return judge(FrozenDisk(disk.settled()), truth) or judge(FrozenDisk(disk.cached()), truth)

    def _violation(self, text: str) -> None:
        self.tally.violations += 1
        if len(self.tally.examples) < VIOLATIONS_KEPT:
            self.tally.examples.append(f"seed {self._seed}, point {self.tally.points}: {text}")


def _is_draft(disk: SimDisk, inode: int) -> bool:
    """Whether the file has no name but a temporary one: no recovery ever reads it, whatever is in it."""
    held = [path for path, at in disk.kernel.seen.items() if at == inode]
    return all(names.short(path).endswith(".tmp") for path in held)


def explore(
    seeds: range, *, actions: int = 14, lossy: bool = False, faulty: bool = False, patient: bool = True
) -> Tally:
    """All seeds, one after another."""
    total = Tally()
    for seed in seeds:
        total.add(Exploration(seed, lossy=lossy, faulty=faulty, patient=patient).run(actions))
        if total.violations and not patient:
            break
    return total
