"""The newest step that all writers of a cohort can prove. Reads only."""

from collections.abc import Sequence
from dataclasses import dataclass

from everstep.errors import Damaged, NotARun, StepNotHeld
from everstep.log.inventory import Inventory, survey
from everstep.store import cohort as cohorts
from everstep.store.disk import Disk


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
    tried = [cohort.epochs for cohort in known]
    if not known:
        newest = _single(disk, url)
        tried = [] if newest is None else [(newest,)]
    elif known[-1].before:
        tried.append(known[-1].before)
    for epochs in tried:
        held = inventories(disk, url, epochs)
        if held is None:
            continue
        found = common(held, step)
        lost = min(inventory.acknowledged for inventory in held)
        if step is None and lost > (-1 if found is None else found):
            raise _lost(held, lost, found)
        if found is not None:
            return Stand(epochs, found)
    if step is not None:
        raise StepNotHeld(f"{url}: no cohort of writers holds step {step} as a whole.")
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


def together(held: Sequence[Inventory]) -> list[tuple[int, int]]:
    """The steps that every one of them can restore, as first and last of each stretch."""
    found = held[0].spans() if held else []
    for inventory in held[1:]:
        found = [
            (max(first, begin), min(last, end))
            for first, last in found for begin, end in inventory.spans() if max(first, begin) <= min(last, end)
        ]  # fmt: skip
    return sorted(found)


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
