"""Writers that train together: which epoch of each belongs to one launch, and where that launch went on from.

One small file in the run's directory, claimed before anyone records a step. A run with a single writer needs none.
"""

import re

import msgspec

from everstep.errors import Fenced
from everstep.store import document
from everstep.store.disk import Disk, claim
from everstep.store.manifest import Count

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
