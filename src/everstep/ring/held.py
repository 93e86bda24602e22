"""What the memory tier holds: a state, and the records that lead on from it. Reads only; any process may ask."""

from collections.abc import Mapping
from dataclasses import dataclass

from everstep.ring.pen import newest_state
from everstep.ring.ring import UPDATE, W_ACKNOWLEDGED, W_HEAD, W_KEEP, Entry, Ring
from everstep.store.memory import Block


@dataclass(frozen=True, slots=True)
class Held:
    """`records` lead from `state.low + 1` to `step`; those up to `state.step` repair the older parts of the state."""

    state: Entry
    records: tuple[Entry, ...]
    step: int


Left = tuple[Ring, Mapping[int, Block], Held]


def left(blocks: Mapping[int, Block]) -> Left | None:
    """What a trainer left in these blocks, of which -1 is the ring, if it can be restored from there."""
    if -1 not in blocks:
        return None
    ring = Ring(blocks[-1])
    found = held(ring)
    if found is None or found.step < ring.word(W_ACKNOWLEDGED) - 1:
        return None
    return ring, blocks, found


def cut(ring: Ring, step: int) -> None:
    """Forget every later step: this writer has it, but not all that train together have."""
    for sequence in range(ring.word(W_KEEP), ring.word(W_HEAD)):
        if ring.whole(sequence) and ring.read(sequence).step > step:
            ring.void(sequence)


def held(ring: Ring) -> Held | None:
    """The newest step that memory alone can restore; None while there is no whole state."""
    state = newest_state(ring)
    if state is None:
        return None
    found: dict[int, Entry] = {}
    for sequence in range(ring.word(W_KEEP), ring.word(W_HEAD)):
        if ring.whole(sequence) and (entry := ring.read(sequence)).kind == UPDATE:
            found[entry.step] = entry
    step = state.low
    while step + 1 in found:
        step += 1
    if step < state.step:
        return None
    return Held(state, tuple(found[at] for at in range(state.low + 1, step + 1)), step)
