"""Writers that train together: which epoch of each belongs to one launch, and where that launch went on from.

One small file in the run's directory, claimed before anyone records a step. A run with a single writer needs none.
"""

import re
import time
from collections.abc import Sequence

import msgspec

from everstep.errors import Fenced
from everstep.store import document, witness
from everstep.store.disk import Disk, claim
from everstep.store.manifest import Count

LOOK_SECONDS = 0.1
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


class Peers:
    """What the other writers of a cohort have acknowledged, from the notes they leave; looked at now and then."""

    def __init__(self, disk: Disk, rank: int, epochs: Sequence[int]) -> None:
        self._disk = disk
        self._others = [(at, epoch) for at, epoch in enumerate(epochs) if at != rank]
        self._looked = 0.0
        self._newest: dict[int, int] = {}

    @property
    def acknowledged(self) -> int:
        """The newest step that all of them have on disk; without others, any step."""
        if self._others and time.monotonic() - self._looked > LOOK_SECONDS:
            self._looked = time.monotonic()
            seen = {at: witness.load(self._disk, at, epoch) for at, epoch in self._others}
            self._newest = {at: -1 if step is None else step for at, step in seen.items()}
        return min(self._newest.values(), default=NOBODY)

    @property
    def slowest(self) -> int:
        return min(self._newest, key=lambda at: self._newest[at], default=-1)

    def wait(self, step: int, seconds: float | None) -> bool:
        """Whether all of them have `step` on disk, after at most `seconds`."""
        deadline = None if seconds is None else time.monotonic() + seconds
        while self.acknowledged < step:
            if deadline is not None and time.monotonic() >= deadline:
                return False
            time.sleep(LOOK_SECONDS / 4)
        return True
