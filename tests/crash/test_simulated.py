"""W1 and W7 in small: crash states of random runs on a simulated disk. `make crash` runs half a million."""

import pytest

from tests.crash.explore import explore


@pytest.mark.parametrize("first", [0, 1])
def test_every_crash_state_of_a_random_run_keeps_what_was_acknowledged(first: int) -> None:
    found = explore(range(first, 4, 2))
    assert found.violations == 0, found.examples
    assert found.states > 9_000
    assert found.continued > 50


def test_a_disk_that_drops_flushes_may_lose_steps_but_never_yields_a_wrong_one() -> None:
    found = explore(range(100, 102), lossy=True)
    assert found.violations == 0, found.examples
    assert found.states > 1_000


def test_a_call_that_fails_before_the_crash_makes_no_difference() -> None:
    found = explore(range(200, 202), faulty=True)
    assert found.violations == 0, found.examples
    assert found.states > 1_000


def test_a_seed_repeats_its_run_exactly() -> None:
    first, second = explore(range(300, 301), actions=5), explore(range(300, 301), actions=5)
    assert (first.states, first.points, first.calls) == (second.states, second.points, second.calls)
