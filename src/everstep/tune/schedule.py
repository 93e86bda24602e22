"""When each byte of the state goes over the bus, and what that costs training: Checkflow's question, in closed form.

Three regimes, by the bus time D of the whole state against what the gradient leaves of a step:
A: D fits the window (forward and backward): everything is read in place; nothing but interference is lost.
B: D fits the step: the remainder is snapshotted just before the optimizer step, when activations are free, and drained
   while it runs. The least remainder is the least overhead (`window`).
C: D is longer than a step. With gradients, K rounds copy some of the pieces each, at the version of their round, and
   gradients repair the difference ("repaired", as GoCkpt does). Without, versions must not mix: the state of every
   K-th step is taken whole, what its window does not carry as one snapshot that drains over the K steps.

Where neither bus nor room suffices, the optimizer step waits (`stall_seconds`): the state is whole anyway, training is
slower by just that, and the caller who finds it too slow can spread wider or allow a higher peak. The overhead is the
least that these rules allow, for the spread given; the tests compare it with an integer program of the same rules.
Snapshots cost less than waiting (`Facts` sees to it), so they are used before it; interference depends on bytes only.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from everstep.tune.deadline import Job, earliest_deadline_first
from everstep.tune.facts import SLOP, Facts, floored
from everstep.tune.rounds import Packer, Price, Round
from everstep.tune.window import Choice, peak_bytes, remainder, snapshot_bytes_max, window
from everstep.types import padded

Regime = Literal["A", "B", "C"]
Way = Literal["direct", "snapshot"]


@dataclass(frozen=True, slots=True)
class Copy:
    """`nbytes` of a piece from `offset` on, over the bus. Snapshots of a round are packed, in the order given.

    Seconds count from the start of the copy's round; the clock stands still while a snapshot is being made.
    """

    name: str
    way: Way
    offset: int
    nbytes: int
    start_seconds: float
    seconds: float


@dataclass(frozen=True, slots=True)
class Schedule:
    """What to copy in which round, again and again, and the price. Seconds and overhead are means over the rounds."""

    regime: Regime
    spread: int
    repaired: bool
    """Whether each piece is of its round's version, and gradients make them one; else all are of the first round's."""
    rounds: tuple[tuple[Copy, ...], ...]
    snapshot_bytes: int
    """The largest snapshot."""
    peak_bytes: int
    """By how much the peak of a step rises."""
    stall_seconds: float
    snapshot_seconds: float
    overhead: float
    """Share of a step lost: waiting, making snapshots, interference."""


def schedule(facts: Facts, *, spread: int | None = None, peak_bytes_max: int = 0) -> Schedule:
    """The schedule with the least overhead, over `spread` rounds, or the fewest that keep training from waiting."""
    if spread is not None and spread < 1:
        raise ValueError(f"a state is copied in at least 1 round, not {spread!r}")
    if peak_bytes_max < 0:
        raise ValueError(f"peak_bytes_max must not be negative, is {peak_bytes_max!r}")
    if facts.gradient_bytes:
        return _packed(facts, spread, peak_bytes_max)
    return _held(facts, spread, peak_bytes_max)


def spread(facts: Facts, *, peak_bytes_max: int = 0) -> int:
    """The fewest rounds in which training waits for nothing but pieces too long for any round: give those in parts."""
    return schedule(facts, peak_bytes_max=peak_bytes_max).spread


def regime(facts: Facts) -> Regime:
    """What the bus could do in one step if memory had no end."""
    bus = window(facts)
    least = remainder(facts, facts.pieces, bus.direct_seconds, padded(facts.state_bytes)).nbytes
    if not least:
        return "A"
    return "B" if least <= floored(facts.bus_bytes_per_s * bus.drain_seconds) else "C"


def _packed(facts: Facts, spread: int | None, peak_bytes_max: int) -> Schedule:
    """Each round stands for itself: its pieces are read in its window, its snapshot ends with its optimizer step."""
    bus, until = window(facts), facts.optimizer_seconds
    limit = snapshot_bytes_max(facts, until, peak_bytes_max)

    def choose(pieces: Round) -> Choice:
        return remainder(facts, pieces, bus.direct_seconds, limit)

    def price(pieces: Round) -> Price:
        choice = choose(pieces)
        cost = choice.stall_seconds + 2 * choice.nbytes / facts.device_bytes_per_s
        return Price(cost, choice.stall_seconds, peak_bytes(facts, choice.nbytes, until))

    packer = Packer(facts.pieces, facts.direct_seconds, price)
    if spread is None:
        rest = sum(piece.nbytes for piece in facts.pieces if not price((piece,)).stall_seconds)
        alone = sum(1 for piece in facts.pieces if price((piece,)).stall_seconds)
        carried = bus.direct_seconds * facts.bus_bytes_per_s + limit
        rounds = packer.fewest(alone + math.ceil(rest / carried - 1e-9 if rest else 0), SLOP * facts.step_seconds)
    else:
        rounds = packer.pack(spread)
    choices = [choose(pieces) for pieces in rounds]
    copies = [_placed(facts, pieces, choice, until) for pieces, choice in zip(rounds, choices, strict=True)]
    return _priced(facts, copies, choices, until, repaired=len(rounds) > 1)


def _held(facts: Facts, spread: int | None, peak_bytes_max: int) -> Schedule:
    """One version: the window of the first round, and one snapshot held, and drained, until the last round ends."""
    step, ahead = facts.step_seconds, facts.window_seconds
    if spread is None:
        longest = math.ceil((ahead + facts.state_bytes / facts.bus_bytes_per_s) / step) * step - ahead
        most = snapshot_bytes_max(facts, longest, peak_bytes_max)
        least = remainder(facts, facts.pieces, ahead, most).nbytes
        spread = max(1, math.ceil((ahead + least / facts.bus_bytes_per_s) / step - SLOP))
    until = (spread - 1) * step + facts.optimizer_seconds
    choice = remainder(facts, facts.pieces, ahead, snapshot_bytes_max(facts, until, peak_bytes_max))
    rounds: list[list[Copy]] = [[] for _ in range(spread)]
    for copy in _placed(facts, facts.pieces, choice, until):
        past = copy.start_seconds - choice.stall_seconds
        at = min(spread - 1, max(0, math.floor(past / step)))
        start = max(0.0, past - at * step) if at else copy.start_seconds
        rounds[at].append(replace(copy, start_seconds=start))
    return _priced(facts, rounds, [choice], until, repaired=False)


def _placed(facts: Facts, pieces: Round, choice: Choice, until: float) -> list[Copy]:
    """The copies of one version in the order of the bus. That the gradient goes first is said by a deadline that
    nothing but going first can meet.
    """
    bus, head = window(facts), min(facts.gradient_seconds, facts.optimizer_seconds)
    update = facts.window_seconds + bus.stall_seconds + choice.stall_seconds
    jobs: list[Job] = []
    copies: list[Copy] = []
    taken = {piece.name: nbytes for piece, nbytes in choice.snapshots}
    for piece in pieces:
        cut = piece.nbytes - taken.get(piece.name, 0)
        if cut:
            seconds = facts.direct_seconds(piece) * cut / piece.nbytes
            jobs.append(Job(0.0, update, seconds))
            copies.append(Copy(piece.name, "direct", 0, cut, 0.0, seconds))
        if cut < piece.nbytes:
            seconds = (piece.nbytes - cut) / facts.bus_bytes_per_s
            jobs.append(Job(update, update + until, seconds))
            copies.append(Copy(piece.name, "snapshot", cut, piece.nbytes - cut, 0.0, seconds))
    jobs += (Job(0.0, bus.spill_seconds, bus.spill_seconds), Job(update, update + head, head))
    table = earliest_deadline_first(jobs)
    assert table.late_seconds <= 1e-9 * (update + until), "what was chosen to fit does not"
    starts: dict[int, float] = {}
    for span in table.spans:
        starts.setdefault(span.job, span.start_seconds)
    return [replace(copies[at], start_seconds=start) for at, start in starts.items() if at < len(copies)]


def _priced(
    facts: Facts, rounds: Sequence[Sequence[Copy]], choices: Sequence[Choice], until: float, *, repaired: bool
) -> Schedule:
    count, largest = len(rounds), max(choice.nbytes for choice in choices)
    stall = window(facts).stall_seconds + sum(choice.stall_seconds for choice in choices) / count
    making = sum(2 * choice.nbytes for choice in choices) / facts.device_bytes_per_s / count
    moving = (facts.state_bytes / count + facts.gradient_bytes) / facts.bus_bytes_per_s
    return Schedule(
        regime=regime(facts),
        spread=count,
        repaired=repaired,
        rounds=tuple(map(tuple, rounds)),
        snapshot_bytes=largest,
        peak_bytes=peak_bytes(facts, largest, until),
        stall_seconds=stall,
        snapshot_seconds=making,
        overhead=(stall + making + facts.interference * moving) / facts.step_seconds,
    )
