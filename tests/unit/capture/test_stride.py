"""A state is asked for in ever larger portions while training waits for it, and in no larger ones than that takes."""

from everstep.capture.stride import LATE_SHARE, LEAST_BYTES, MOST_BYTES, PATIENCE, Stride

TRAVEL = 0.1
LATE, IN_TIME = 2 * LATE_SHARE * TRAVEL, LATE_SHARE * TRAVEL / 2


def test_it_stays_small_while_states_come_in_time() -> None:
    stride = Stride()
    for _ in range(100):
        stride.arrived(stride.nbytes, IN_TIME, TRAVEL)
    assert stride.nbytes == LEAST_BYTES


def test_one_late_state_is_no_reason() -> None:
    stride = Stride()
    for at in range(100):
        stride.arrived(stride.nbytes, LATE if at % PATIENCE else IN_TIME, TRAVEL)
    assert stride.nbytes == LEAST_BYTES


def test_it_grows_until_they_come_in_time() -> None:
    """A bus that stands still for 0.1 ms after each portion, and 0.05 s for 2 GB of it to be there."""
    stride, nbytes, seen = Stride(), 2 << 30, []
    for _ in range(20):
        took = nbytes / 55e9 + nbytes / stride.nbytes * 1e-4
        stride.arrived(stride.nbytes, max(0.0, took - 0.043), nbytes / 55e9)
        seen.append(stride.nbytes)
    assert seen == sorted(seen)
    assert seen[-1] == 64 << 20


def test_what_set_out_before_a_change_says_nothing_of_it() -> None:
    stride = Stride()
    for _ in range(PATIENCE):
        stride.arrived(LEAST_BYTES, LATE, TRAVEL)
    grown = stride.nbytes
    assert grown == 2 * LEAST_BYTES
    for _ in range(10):
        stride.arrived(LEAST_BYTES, LATE, TRAVEL)
    assert stride.nbytes == grown


def test_nobody_waits_for_more_than_the_most() -> None:
    stride = Stride()
    for _ in range(100):
        stride.arrived(stride.nbytes, 10 * TRAVEL, TRAVEL)
    assert stride.nbytes == MOST_BYTES
