"""The state is copied again as seldom as memory and replay allow, and no more seldom than is of use."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from everstep.tune.cadence import Cadence, cadence
from everstep.tune.facts import Facts
from everstep.tune.schedule import schedule
from tests.unit.tune.measured import anything, facts

LIMITS: dict[str, Any] = {"ring_records": 1000, "replay_seconds": 0.5, "replay_seconds_max": 500.0}
MEASURED = facts(2000, gradient_bytes=500, interference=0.25)
"""A fill moves 2 s of bytes: half a second of training is lost, of a step of 4 s."""


@pytest.mark.parametrize(
    "named, steps, records",
    [
        ({}, 125, 126),  # 0.5 s / (0.1 % of 4 s)
        ({"share_max": 0.125}, 1, 2),
        ({"share_max": 0.01}, 13, 14),
        ({"ring_records": 100}, 99, 100),
        ({"ring_records": 2}, 1, 2),
        ({"replay_seconds_max": 10.0}, 19, 20),
    ],
)
def test_it_is_as_short_as_the_bus_lets_it_be_but_ring_and_replay_come_first(
    named: dict[str, Any], steps: int, records: int
) -> None:
    found = cadence(MEASURED, schedule(MEASURED), **{**LIMITS, **named})
    assert found == Cadence(steps, records, records * 0.5, 4000 + records * 500, 0.5 / (steps * 4))


def test_what_gradients_cost_in_every_step_is_not_the_fills() -> None:
    """A gradient of 3 s is not gone after the optimizer step and the forward, 2 s: backward waits for it anyway."""
    measured = facts(2000, gradient_bytes=3000, interference=0.25)
    assert schedule(measured).stall_seconds == 1.0
    assert cadence(measured, schedule(measured), **LIMITS).steps == 125


@pytest.mark.parametrize("count", [1, 2, 3])
def test_the_records_of_a_fill_under_way_are_held_too(count: int) -> None:
    measured = facts(1000, 1000, 1000, gradient_bytes=500, interference=0.25)
    found = cadence(measured, schedule(measured, spread=count), **LIMITS)
    assert found.records == found.steps + count
    assert found.steps >= count


@settings(deadline=None)
@given(anything(), st.integers(1, 50), st.floats(0.01, 1), st.floats(0.01, 50), st.floats(1e-4, 0.1))
def test_memory_and_replay_are_never_exceeded_or_it_is_refused(
    measured: Facts, ring: int, one: float, most: float, share: float
) -> None:
    fill = schedule(measured)
    limits = {"ring_records": ring, "replay_seconds": one, "replay_seconds_max": most, "share_max": share}
    try:
        found = cadence(measured, fill, **limits)  # type: ignore[arg-type]
    except ValueError:
        assert not measured.gradient_bytes or min(ring, most / one) < 2 * fill.spread + 1e-6
    else:
        assert found.records <= ring
        assert found.replay_seconds <= most * (1 + 1e-6)
        assert found.overhead <= share * (1 + 1e-6) or found.records + 1 > min(ring, most / one) * (1 - 1e-6)


@pytest.mark.parametrize(
    "named, words",
    [
        ({"ring_records": 1}, "2 records must be held, and 1 can be"),
        ({"replay_seconds_max": 0.9}, "Enlarge the ring, allow a longer replay"),
        ({"replay_seconds": 0.0}, "must be above 0"),
        ({"replay_seconds_max": -1.0}, "must be above 0"),
        ({"share_max": 0.0}, "must be above 0"),
    ],
)
def test_what_cannot_be_held_is_refused(named: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        cadence(MEASURED, schedule(MEASURED), **{**LIMITS, **named})


def test_without_gradients_there_is_no_cadence() -> None:
    with pytest.raises(ValueError, match="without gradients"):
        cadence(facts(100), schedule(facts(100)), **LIMITS)
