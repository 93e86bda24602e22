"""Which base to start from, to reach which step. Pure: an inventory in, candidates out, best first."""

from dataclasses import dataclass

from everstep.errors import Damaged, StepNotHeld
from everstep.log import frame
from everstep.log.inventory import Inventory
from everstep.log.reader import Located
from everstep.store.manifest import BaseEntry


@dataclass(frozen=True, slots=True)
class Route:
    """A base, and the records that lead from it to `step`."""

    base: BaseEntry
    records: tuple[Located, ...]
    step: int


def routes(inventory: Inventory, step: int | None = None) -> list[Route]:
    """Every way to the wanted step, the shortest first; should a base prove damaged, the next way leads round it.

    Without `step` the newest that can be proved; Damaged when something newer had been acknowledged. Empty when the
    run holds nothing yet.
    """
    wanted = inventory.newest if step is None else step
    if step is None:
        if wanted < inventory.acknowledged:
            raise _lost(inventory, wanted)
        if wanted < 0:
            return []
    found = [
        Route(base, tuple(inventory.records[at] for at in range(base.step + 1, wanted + 1)), wanted)
        for base in reversed(inventory.bases)
        if base.step <= wanted <= inventory.reach(base.step)
    ]
    if not found:
        raise _not_held(inventory, wanted)
    return found


def _lost(inventory: Inventory, reached: int) -> Damaged:
    if inventory.damages:
        first = inventory.damages[-1]
        return Damaged(str(first), intact=reached if reached >= 0 else first.intact)
    good = f"Steps up to {reached} are intact" if reached >= 0 else "No step can be restored"
    return Damaged(
        f"step {inventory.acknowledged} was acknowledged, but the files that are left do not lead to it. {good}. "
        f"Restore the missing files from a copy, or give up the difference with run.resume(step={reached}).",
        intact=reached,
    )


def _not_held(inventory: Inventory, step: int) -> StepNotHeld:
    spans = inventory.spans()
    held = ", ".join(f"{first}" if first == last else f"{first} to {last}" for first, last in spans) or "none"
    record = inventory.records.get(step)
    why = (
        " (it was kept only as a base, which is gone)"
        if record is not None and record.frame.kind == frame.REBASE
        else ""
    )
    damage = f" {inventory.damages[0]}" if inventory.damages else ""
    return StepNotHeld(f"step {step} cannot be restored{why}. Steps that can: {held}.{damage}")
