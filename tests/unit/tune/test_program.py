"""No schedule under the same rules costs less: an exact solver, which knows nothing of ours, finds none."""

import random
from dataclasses import replace

import pytest

from everstep.tune.schedule import Schedule, schedule
from tests.unit.tune.grid import BLOCK_BYTES, SLOT_SECONDS, Grid, drawn
from tests.unit.tune.program import best

SEEDS, INSTANCES = range(20), 50
NEAR = 1e-4
"""Costs on the grid are multiples of 1/512 of a slot; the solver takes 1e-6 for nothing."""


def ours(grid: Grid, spread: int | None) -> Schedule:
    return schedule(grid.facts(), spread=spread, peak_bytes_max=grid.peak_max * BLOCK_BYTES)


def slots(found: Schedule, seconds: float) -> float:
    """Over all rounds together."""
    return seconds * found.spread / SLOT_SECONDS


@pytest.mark.parametrize("seed", SEEDS)
def test_no_schedule_costs_less_or_has_a_lower_peak_at_that_cost(seed: int) -> None:
    chance = random.Random(seed)
    for _ in range(INSTANCES):
        grid, spread = drawn(chance), chance.choice((None, None, 1, 2, 3))
        found = ours(grid, spread)
        exact = best(grid, found.spread)
        assert slots(found, found.stall_seconds + found.snapshot_seconds) == pytest.approx(exact.seconds, abs=NEAR), (
            grid
        )
        assert slots(found, found.stall_seconds) == pytest.approx(exact.stall, abs=NEAR), grid
        assert found.peak_bytes / BLOCK_BYTES == pytest.approx(exact.peak, abs=NEAR), grid


@pytest.mark.parametrize("seed", range(4))
def test_in_fewer_rounds_training_would_wait_longer(seed: int) -> None:
    chance = random.Random(seed)
    for _ in range(INSTANCES):
        grid = drawn(chance)
        found = ours(grid, None)
        if found.spread > 1:
            unavoidable = slots(found, found.stall_seconds) - found.spread * forced(grid)
            fewer = found.spread - 1
            assert best(grid, fewer).stall - fewer * forced(grid) > unavoidable + NEAR, grid


def forced(grid: Grid) -> int:
    """Slots in which backward waits for the gradient, in every round."""
    return max(0, grid.gradient_slots - grid.optimizer - grid.forward)


@pytest.mark.parametrize("seed", range(2))
def test_training_waits_for_no_piece_that_would_fit_a_round_of_its_own(seed: int) -> None:
    chance = random.Random(seed)
    for _ in range(INSTANCES):
        grid = drawn(chance)
        if grid.gradient:
            pieces = zip(grid.blocks, grid.factors, strict=True)
            single = [replace(grid, blocks=(blocks,), factors=(factor,)) for blocks, factor in pieces]
            alone = sum(best(one, 1).stall - forced(grid) for one in single)
            found = ours(grid, None)
            assert slots(found, found.stall_seconds) - found.spread * forced(grid) == pytest.approx(alone, abs=NEAR)
