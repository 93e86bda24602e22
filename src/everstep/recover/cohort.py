"""The newest step that all writers of a cohort can prove. Reads only."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from everstep.errors import Damaged, NotARun, StepNotHeld
from everstep.log.inventory import Inventory, survey
from everstep.store import cohort as cohorts
from everstep.store.cohort import Cohort
from everstep.store.disk import Disk
from everstep.types import Span


@dataclass(frozen=True, slots=True)
class Stand:
    """Where a run stands: the epochs of the writers that hold `step` together, by rank."""

    epochs: tuple[int, ...]
    step: int


def stand(disk: Disk, url: str, step: int | None = None) -> Stand | None:
    """The newest step that can be restored as a whole, or `step`; None when the run holds nothing yet.

    A cohort that died before all its writers held one common step is as if it had never begun.
    """
    known = cohorts.load_all(disk)
    for epochs in _tried(disk, url, known):
        held = inventories(disk, url, epochs)
        if held is None:
            continue
        found = common(held, step)
        lost = cohorts.newest([inventory.promised for inventory in held])
        if step is None and lost > (-1 if found is None else found):
            raise _lost(held, lost, found)
        if found is not None:
            return Stand(epochs, found)
    if step is not None:
        raise StepNotHeld(f"{url}: no cohort of writers holds step {step} as a whole.")
    return None


def lasting(disk: Disk, url: str) -> tuple[tuple[int, ...], list[Inventory]] | None:
    """The newest writers that hold any step together, by epoch, and what each holds; None when none do, or there is
    only one."""
    known = cohorts.load_all(disk)
    for epochs in _tried(disk, url, known) if known else ():
        held = inventories(disk, url, epochs)
        if held is not None and together(held):
            return epochs, held
    return None


def inventories(disk: Disk, url: str, epochs: Sequence[int]) -> list[Inventory] | None:
    """What each writer holds; None when one of them never began."""
    try:
        return [survey(disk, url, rank=rank, epoch=epoch) for rank, epoch in enumerate(epochs)]
    except (NotARun, StepNotHeld):
        return None


def common(held: Sequence[Inventory], step: int | None = None) -> int | None:
    """The newest step, or `step`, that every one of them can restore."""
    spans = together(held)
    if step is not None:
        return step if any(first <= step <= last for first, last in spans) else None
    return spans[-1][1] if spans else None


def together(held: Sequence[Inventory]) -> list[Span]:
    """The steps that every one of them can restore, as first and last of each stretch."""
    return cohorts.shared([inventory.spans() for inventory in held])


def _tried(disk: Disk, url: str, known: Sequence[Cohort]) -> Iterator[tuple[int, ...]]:
    """The writers that may hold a step together, the newest first."""
    for at in range(len(known)):
        yield cohorts.tips(disk, known, at)
    if known and known[-1].before:
        yield known[-1].before
    if not known and (newest := _single(disk, url)) is not None:
        yield (newest,)


def _single(disk: Disk, url: str) -> int | None:
    """The newest epoch of a run that never had more than one writer."""
    try:
        return survey(disk, url).epoch
    except NotARun:
        return None


def _lost(held: Sequence[Inventory], acknowledged: int, found: int | None) -> Damaged:
    damages = [damage for inventory in held for damage in inventory.damages]
    good = f"Steps up to {found} are intact" if found is not None else "No step can be restored"
    told = f" {damages[0]}" if damages else ""
    return Damaged(
        f"step {acknowledged} was acknowledged by every writer, but their files do not lead to it. {good}.{told} "
        f"Restore the missing files from a copy, or give up the difference with run.resume(step={found}).",
        intact=found,
    )
