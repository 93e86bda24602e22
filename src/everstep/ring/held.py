"""What the memory tier holds: states, and the records that lead on from each. Reads only; any process may ask."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from everstep.ring.ring import STATE, UPDATE, W_ACKNOWLEDGED, W_HEAD, W_KEEP, W_RELEASED, Entry, Ring
from everstep.store.memory import Block
from everstep.types import Span


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


def held(ring: Ring, at: int | None = None) -> Held | None:
    """The newest step that memory alone can restore, or step `at`; None while it cannot. By the newest state that
    leads there."""
    best: Held | None = None
    for one in _chains(ring):
        if at is not None and one.state.step <= at <= one.step:
            return replace(one, records=tuple(entry for entry in one.records if entry.step <= at), step=at)
        if at is None and (best is None or one.step > best.step):
            best = one
    return best


def spans(ring: Ring) -> tuple[Span, ...]:
    """The steps that memory can restore, as first and last of what each state leads to, oldest first."""
    return tuple(sorted((one.state.step, one.step) for one in _chains(ring)))


def following(ring: Ring, step: int) -> int:
    """The first entry that a log lacks which ends with `step`."""
    for sequence in range(ring.word(W_RELEASED), ring.word(W_HEAD)):
        if not ring.whole(sequence) or ((entry := ring.read(sequence)).kind == UPDATE and entry.step > step):
            return sequence
    return ring.word(W_HEAD)


def _chains(ring: Ring) -> Iterator[Held]:
    """Every whole state with all that leads on from it, the newest first."""
    records: dict[int, Entry] = {}
    states: list[Entry] = []
    for sequence in range(ring.word(W_KEEP), ring.word(W_HEAD)):
        if ring.whole(sequence) and (entry := ring.read(sequence)).kind in (UPDATE, STATE):
            if entry.kind == STATE:
                states.append(entry)
            else:
                records[entry.step] = entry
    for state in reversed(states):
        step = state.low
        while step + 1 in records:
            step += 1
        if step >= state.step:
            yield Held(state, tuple(records[at] for at in range(state.low + 1, step + 1)), step)
