"""What ranks have in memory of a trainer before them, and what all of them can make of it together.

It is taken up by all or by none: each its own part, of one step that every rank has and the disk has nothing newer
than. Memory that fewer ranks take up than began it does not go on: on the disk each may have written a share only of
what they held alike.
"""

from collections.abc import Callable, Sequence

import msgspec

from everstep.capture.shards import box_of
from everstep.errors import Damaged
from everstep.recording.program import Program
from everstep.recover import in_step
from everstep.ring.held import Left, spans
from everstep.ring.ring import W_COHORT, W_WRITERS
from everstep.store import state
from everstep.store.cohort import newest
from everstep.types import Span


class Offer(msgspec.Struct, frozen=True):
    """The steps that a rank can restore from memory, by the states that they follow. `cohort` began that."""

    spans: tuple[Span, ...] = ()
    cohort: tuple[int, int] = (0, 1)
    in_step: bool = False
    """Whether its optimizers need the other ranks: then all of them start at the same step."""


class Verdict(msgspec.Struct, frozen=True):
    """The step that every rank takes from memory, -1 for none, and whether they go on in it."""

    step: int = -1
    goes_on: bool = False


def offered(left: Left | None, program: Program) -> Offer:
    """The steps that memory can restore, if it holds exactly what the program has, and who began it."""
    nothing = Offer(in_step=in_step.needed(program.roster))
    if left is None:
        return nothing
    ring, areas, held = left
    try:
        table, said, _ = state.parse(ring.pieces(held.state), areas[held.state.area].nbytes)
    except (Damaged, KeyError):
        return nothing
    there = {item.tensor.name: item.tensor.box for item in table if item.tensor.name.startswith("model/")}
    here = {f"model/{name}": box_of(name, parameter) for name, parameter in program.roster.parameters.items()}
    if there != here or said.content.layout != program.roster.layout:
        return nothing
    return Offer(spans(ring), (ring.word(W_COHORT), ring.word(W_WRITERS)), nothing.in_step)


def agreed(offers: Sequence[Offer], on_disk: Callable[[], int]) -> Verdict:
    """What to make of the offers of all ranks. `on_disk`: the newest step there, -1 for none."""
    begun = {offer.cohort for offer in offers}
    if len(begun) > 1:
        return Verdict()  # they may be of branches that parted
    step = newest([offer.spans for offer in offers])
    if any(offer.in_step for offer in offers) and len({_state(offer, step) for offer in offers}) > 1:
        return Verdict()
    if step < 0 or step < on_disk():
        return Verdict()
    return Verdict(step, all(writers == len(offers) for _, writers in begun))


def _state(offer: Offer, step: int) -> int:
    """That from which the step is reached."""
    return max((first for first, last in offer.spans if first <= step <= last), default=-1)


def was_shared(left: Left | None) -> bool:
    """Whether the trainer before wrote a share of its state only."""
    if left is None:
        return False
    ring, areas, held = left
    return state.parse(ring.pieces(held.state), areas[held.state.area].nbytes)[1].owned is not None
