"""Writers that train together: which epoch of each belongs to one launch, and where that launch went on from.

One small file in the run's directory, claimed before anyone records a step. A run with a single writer needs none.
"""

import re
import time
from collections.abc import Sequence

import msgspec

from everstep.errors import Fenced
from everstep.store import document, names, prune, witness
from everstep.store.disk import Disk, claim
from everstep.store.manifest import Count, load_newest
from everstep.types import Span

LOOK_SECONDS = 0.1
SEARCH_SECONDS = 1.0
NOBODY = 1 << 62
NAME = re.compile(r"c(\d{8})\.json", re.ASCII)


class Cohort(msgspec.Struct, frozen=True):
    """`epochs` has one epoch per rank. `before`: those of the cohort it goes on from, after `step`; empty for none."""

    number: Count
    epochs: tuple[Count, ...]
    before: tuple[Count, ...]
    step: Count
    opened: str


def load_all(disk: Disk) -> list[Cohort]:
    """Every cohort of a run, the newest first."""
    numbers = sorted((int(m[1]) for name in disk.names("") if (m := NAME.fullmatch(name))), reverse=True)
    return [document.load(disk, name_of(number), "cohort", Cohort) for number in numbers]


def begin(disk: Disk, cohort: Cohort) -> None:
    """Make a cohort known; Fenced when another launch was faster."""
    if not claim(disk, name_of(cohort.number), document.pack("cohort", cohort)):
        raise Fenced(f"{name_of(cohort.number)}: another launch of this run has just begun. Stop this one.")


def name_of(number: int) -> str:
    return f"c{number:08d}.json"


def tips(disk: Disk, known: Sequence[Cohort], at: int = 0) -> tuple[int, ...]:
    """The epochs in which the writers of a cohort ended: of a keeper that died another took the place."""
    found, there = [], set(names.ranks(disk.names("")))
    for rank, epoch in enumerate(known[at].epochs):
        later = [cohort.epochs[rank] for cohort in known[:at] if rank < len(cohort.epochs)]
        manifest = load_newest(disk, rank) if rank in there else None
        found.append(epoch if manifest is None else prune.tip(manifest, epoch, min(later, default=None)))
    return tuple(found)


def shared(held: Sequence[Sequence[Span]]) -> list[Span]:
    """The steps that are in every one of these, as first and last of each stretch."""
    found = list(held[0]) if held else []
    for spans in held[1:]:
        found = [
            (max(first, begin), min(last, end))
            for first, last in found for begin, end in spans if max(first, begin) <= min(last, end)
        ]  # fmt: skip
    return sorted(found)


def newest(held: Sequence[Sequence[Span]]) -> int:
    """The newest of those steps; -1 for none. Of thousands of writers, without putting all their stretches together."""
    step, lower = NOBODY, min((_up_to(spans, NOBODY) for spans in held), default=-1)
    while lower < step:
        step, lower = lower, min(_up_to(spans, lower) for spans in held) if lower >= 0 else lower
    return step


def _up_to(spans: Sequence[Span], step: int) -> int:
    """The newest of these steps that is no newer; -1 for none."""
    return next((min(step, last) for first, last in reversed(spans) if first <= step), -1)


class Peers:
    """What the writers of a cohort have on disk together, from the notes that they leave; looked at now and then.

    The newest step of each does not tell: where disks get bases only, one may have a step that another has passed over.
    """

    def __init__(self, disk: Disk, epochs: Sequence[int]) -> None:
        self._disk = disk
        self._epochs = dict(enumerate(epochs)) if len(epochs) > 1 else {}
        self._looked = self._searched = 0.0
        self._held: dict[int, tuple[Span, ...]] = dict.fromkeys(self._epochs, ())
        self._newest = -1 if self._epochs else NOBODY

    @property
    def acknowledged(self) -> int:
        """The newest step that all of them have on disk; where there is but one, any step."""
        if self._epochs and time.monotonic() - self._looked > LOOK_SECONDS:
            self._looked = time.monotonic()
            self._look()
        return self._newest

    @property
    def slowest(self) -> int:
        return min(self._held, key=lambda rank: self._held[rank][-1:], default=-1)

    def wait(self, step: int, seconds: float | None) -> bool:
        """Whether all of them have `step` on disk, or together a newer one, after at most `seconds`."""
        deadline = None if seconds is None else time.monotonic() + seconds
        while self.acknowledged < step:
            if deadline is not None and time.monotonic() >= deadline:
                return False
            time.sleep(LOOK_SECONDS / 4)
        return True

    def _look(self) -> None:
        """A keeper that took a dead one's place has notes of its own: they are searched for where nothing is new."""
        searches = self._looked - self._searched > SEARCH_SECONDS
        for rank, epoch in self._epochs.items():
            noted = witness.load(self._disk, rank, epoch)
            still = noted is None or noted.spans == self._held[rank]
            if still and searches:
                self._epochs[rank] = max([epoch, *witness.epochs(self._disk, rank)])
            if noted is not None:
                self._held[rank] = noted.spans
        self._searched = self._looked if searches else self._searched
        self._newest = newest(list(self._held.values()))
