"""The bus time of one round, and the least that must be snapshotted for its pieces to fit.

A round lasts from the end of one optimizer step to the end of the next. The gradient goes first, during the optimizer
step that consumes it and the next forward; the state gets what is left. Bytes of the window are read in place
("direct"). Bytes that do not fit are copied aside on the device just before the optimizer step ("snapshot"), while
activations are free, and drained while it runs. Not later: a drain in the next forward takes the bus from direct
copying there, second for second, and so only makes more snapshots. Not earlier either: packing pieces of many copies
ahead would save bus time, but takes memory while activations hold it, for copies that cost what 100 kB each do.

Cutting a piece between both ways is allowed, since either part is of the same version. So the least bytes to snapshot
are a fractional knapsack, and taking pieces in order of bus time per byte is optimal: few bytes, many copies first.
What a snapshot holds is packed, so it drains at the speed of the bus, and memory depends on its bytes alone; the same
choice is therefore also the one that needs the least room, and that waits least where room is short.
Two roundings: cuts lie on the alignment, and the part of a cut piece that is read in place is charged its share of
`copies`, not whole ones. Together they are wrong by less than 64 bytes and one `copy_seconds` per round.
"""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from everstep.tune.facts import SLOP, Facts, Piece, floored
from everstep.types import padded


@dataclass(frozen=True, slots=True)
class Window:
    """What the gradient leaves of a round."""

    spill_seconds: float
    """The gradient of the step before, still on the bus when the round begins."""
    stall_seconds: float
    """How long backward waits for it, since it overwrites what is being copied."""
    direct_seconds: float
    drain_seconds: float
    """Bus time within the optimizer step."""


@dataclass(frozen=True, slots=True)
class Choice:
    """How many bytes of each piece, its last ones, are snapshotted, and how long the optimizer step waits besides."""

    snapshots: tuple[tuple[Piece, int], ...]
    stall_seconds: float

    @property
    def nbytes(self) -> int:
        return sum(nbytes for _, nbytes in self.snapshots)


def window(facts: Facts) -> Window:
    """The bus time left to the state in every step once the gradient has gone."""
    gradient = facts.gradient_seconds
    spill = max(0.0, gradient - facts.optimizer_seconds)
    stall = max(0.0, spill - facts.forward_seconds)
    return Window(
        spill_seconds=spill,
        stall_seconds=stall,
        direct_seconds=facts.window_seconds + stall - spill,
        drain_seconds=max(0.0, facts.optimizer_seconds - gradient),
    )


def remainder(facts: Facts, pieces: Sequence[Piece], direct_seconds: float, bytes_max: int) -> Choice:
    """The least to snapshot, at most `bytes_max`, so that the rest can be read in place; what is still over waits."""
    over = sum(map(facts.direct_seconds, pieces)) - direct_seconds
    slop = SLOP * facts.step_seconds
    taken: list[tuple[Piece, int]] = []
    for piece in sorted(pieces, key=lambda piece: -facts.direct_seconds(piece) / piece.nbytes):
        if over <= slop:
            break
        per_byte = facts.direct_seconds(piece) / piece.nbytes
        cut = max(floored(piece.nbytes - over / per_byte), padded(piece.nbytes - bytes_max))
        if cut >= piece.nbytes:
            break
        nbytes = piece.nbytes - cut
        taken.append((piece, nbytes))
        over -= nbytes * per_byte
        bytes_max -= nbytes
        if cut:  # all that is needed, or all that is allowed
            break
    return Choice(tuple(taken), over if over > slop else 0.0)


def snapshot_bytes_max(facts: Facts, drain_until: float, peak_bytes_max: int) -> int:
    """The most that can be snapshotted: drained `drain_until` seconds after the optimizer step began, room permitting.

    Memory comes free as it drains, so a phase that begins later leaves room for what has gone by then.
    """
    limit = facts.bus_bytes_per_s * max(0.0, drain_until - facts.gradient_seconds)
    for start, free in _phases(facts, drain_until):
        limit = min(limit, free + peak_bytes_max + _drained(facts, start))
    return min(floored(limit), padded(facts.state_bytes))


def peak_bytes(facts: Facts, nbytes: int, drain_until: float) -> int:
    """By how much a snapshot of `nbytes` raises the peak of a step."""
    over = (nbytes - _drained(facts, start) - free for start, free in _phases(facts, drain_until))
    return max(0, round(max(over, default=0.0)))


def _phases(facts: Facts, until: float) -> Iterator[tuple[float, int]]:
    """Every phase that begins before `until`, step after step."""
    for step in itertools.count():
        for start, free in facts.room:
            if step * facts.step_seconds + start >= until:
                return
            yield step * facts.step_seconds + start, free


def _drained(facts: Facts, seconds: float) -> float:
    """What the bus carried of a snapshot so long after the optimizer step began; the gradient went first."""
    return facts.bus_bytes_per_s * max(0.0, seconds - facts.gradient_seconds)
