"""A base is due when the log since the last one is too long to keep or to replay."""

import pytest

from everstep.keeper.pace import LOG_BYTES_MIN, Pace
from everstep.settings import Settings


def due_after(pace: Pace, nbytes: int, *, seconds: float = 0.0) -> int:
    """The record with which a base is due."""
    return next(at for at in range(1, 100_000) if pace.recorded(nbytes, at * seconds))


def test_a_base_is_due_after_the_bytes_that_were_asked_for() -> None:
    pace = Pace(Settings(base_log_bytes_max=1000))
    pace.based(10)
    assert due_after(pace, 100) == 10


def test_counting_begins_anew_with_a_base() -> None:
    pace = Pace(Settings(base_log_bytes_max=1000))
    for _ in range(3):
        pace.based(10)
        assert due_after(pace, 250) == 4


@pytest.mark.parametrize("state, limit", [(1, LOG_BYTES_MIN), (LOG_BYTES_MIN, 4 * LOG_BYTES_MIN)])
def test_by_default_the_log_may_grow_to_four_states(state: int, limit: int) -> None:
    pace = Pace(Settings())
    pace.based(state)
    assert due_after(pace, limit // 8) == 8


def test_a_measured_replay_bounds_the_number_of_records() -> None:
    pace = Pace(Settings(replay_seconds_max=2.0))
    pace.based(10)
    pace.resumed(10, 0, 10, 1.0)
    assert due_after(pace, 1) == 10


def test_before_a_replay_was_measured_a_tenth_of_the_training_time_is_taken_for_it() -> None:
    pace = Pace(Settings(replay_seconds_max=2.0))
    pace.based(10)
    assert due_after(pace, 1, seconds=1.0) == 21


def test_what_was_resumed_over_counts() -> None:
    pace = Pace(Settings(base_log_bytes_max=1000))
    pace.resumed(10, 900, 9, 0.0)
    assert due_after(pace, 50) == 2
