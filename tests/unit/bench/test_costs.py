"""Overheads and intervals follow from measured times by arithmetic that can be checked by hand."""

import pytest

from bench.overhead.costs import Cost, overhead_pct, p99, usable_interval


def test_a_drift_of_the_machine_is_no_overhead() -> None:
    assert overhead_pct(100.0, 105.0, 110.0) == pytest.approx(0.0)


def test_the_tail_is_the_worst_step_but_one_in_a_hundred() -> None:
    assert p99([float(value) for value in range(101)]) == 99.0
    assert p99([7.0]) == 7.0


def test_a_save_that_only_blocks_costs_what_it_blocks() -> None:
    assert Cost(step_s=0.1, extra_s=0.5, write_s=0.5).overhead_pct(10) == pytest.approx(50.0)


def test_a_save_that_comes_too_early_waits_for_the_one_before() -> None:
    cost = Cost(step_s=0.1, extra_s=0.0, write_s=2.0)
    assert cost.overhead_pct(1) == pytest.approx(1900.0)
    assert cost.overhead_pct(20) == pytest.approx(0.0)


@pytest.mark.parametrize(
    "extra_s, write_s", [(0.0, 0.0), (0.001, 0.0), (0.02, 0.02), (0.5, 0.5), (0.01, 4.0), (2.1, 7.3)]
)
def test_no_shorter_interval_than_the_shortest_is_within_the_limit(extra_s: float, write_s: float) -> None:
    cost = Cost(step_s=0.041, extra_s=extra_s, write_s=write_s)
    every = cost.shortest_interval()
    assert cost.overhead_pct(every) <= 3.5
    assert every == 1 or cost.overhead_pct(every - 1) > 3.5


COST = Cost(step_s=0.1, extra_s=0.35, write_s=0.35)


def test_without_a_measurement_the_model_answers() -> None:
    every, because = usable_interval(COST, 100, {1: 350.0})
    assert every == 100
    assert "cost model" in because


def test_a_measurement_within_the_limit_confirms_the_plan() -> None:
    assert usable_interval(COST, 100, {1: 350.0, 100: 3.4})[0] == 100


def test_a_measurement_beyond_the_limit_corrects_the_plan_in_proportion() -> None:
    assert usable_interval(COST, 100, {1: 350.0, 100: 7.0})[0] == 200


def test_a_shorter_interval_seen_to_be_usable_settles_it() -> None:
    assert usable_interval(COST, 100, {1: 350.0, 40: 3.0, 100: 7.0})[0] == 40
    assert usable_interval(COST, 300, {1: 350.0, 40: 3.0})[0] == 40


def test_what_is_cheap_enough_at_every_step_needs_no_model() -> None:
    assert usable_interval(COST, 100, {1: 3.5})[0] == 1
