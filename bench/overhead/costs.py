"""What checkpoints cost, from measured times alone: overheads, tails, and the shortest interval within a budget."""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from bench.overhead.blocks import Block

LIMIT_PCT = 3.5
"""What a checkpoint may cost for its interval to count as usable: the figure of the field's own papers."""


def overhead_pct(before: float, during: float, after: float) -> float:
    """By how much `during` exceeds the mean of what stands on both sides of it, so that a slow drift cancels out."""
    return 100 * (during / statistics.mean((before, after)) - 1)


def spread_pct(blocks: Sequence[Block]) -> float:
    """By how much the slowest of them exceeds the fastest: what a difference must exceed to mean anything."""
    seconds = [block.step_s for block in blocks]
    return 100 * (max(seconds) / min(seconds) - 1)


def p99(values: Sequence[float]) -> float:
    return statistics.quantiles(values, n=100, method="inclusive")[98] if len(values) > 1 else values[0]


@dataclass(frozen=True, slots=True)
class Cost:
    """One save of a peer, measured alone, beside a training step without any."""

    step_s: float
    extra_s: float
    """What the save adds to training: the time its call blocks, and what its background work slows down."""
    write_s: float
    """From the call until the save is complete. A save that comes earlier waits for the one before."""

    def period_s(self, every: int) -> float:
        return max(every * self.step_s + self.extra_s, self.write_s)

    def overhead_pct(self, every: int) -> float:
        return 100 * (self.period_s(every) / (every * self.step_s) - 1)

    def shortest_interval(self) -> int:
        """The fewest steps between two saves that keep the overhead within the limit."""
        limit = LIMIT_PCT / 100
        blocked = self.extra_s / (limit * self.step_s)
        waiting = self.write_s / ((1 + limit) * self.step_s)
        return max(1, math.ceil(blocked), math.ceil(waiting))


def usable_interval(cost: Cost, planned: int, measured_pct: Mapping[int, float]) -> tuple[int, str]:
    """The shortest usable interval and what it rests on: a measurement where there is one, else the cost model.

    `planned` is what the model said before the measurements. A measurement there that contradicts it corrects it in
    proportion; one that shows a shorter interval to be usable settles it.
    """
    adds = f"a save adds {1e3 * cost.extra_s:,.0f} ms and takes {cost.write_s:.2f} s"
    every, because = cost.shortest_interval(), f"by cost model: {adds}"
    if planned in measured_pct:
        found = measured_pct[planned]
        every = math.ceil(planned * max(1.0, found / LIMIT_PCT))
        because = f"from {found:.2f} % measured at every {planned}"
    seen = min((k for k, pct in measured_pct.items() if pct <= LIMIT_PCT), default=None)
    if seen is not None and seen <= every:
        return seen, f"measured: {measured_pct[seen]:.2f} % at every {seen}"
    return every, because
