"""States are asked for in portions that grow while training waits for them, and shrink when that was long ago."""

from everstep.capture.stride import LATE_SHARE, LATE_STATES, LEAST_BYTES, MOST_BYTES, TIMELY_STATES, Stride

BUS = 55e9


def travel(stride: Stride, waited: float) -> None:
    stride.arrived(stride.nbytes, waited, stride.nbytes / BUS)


def waited(portion: int, nbytes: int, gap: float, room: float) -> float:
    """On a bus that stands still for `gap` seconds after each portion, for a state that has `room` seconds."""
    return max(0.0, nbytes / BUS + nbytes / portion * gap - room)


def test_it_stays_small_while_states_come_in_time() -> None:
    stride = Stride()
    for _ in range(1000):
        travel(stride, LATE_SHARE * LEAST_BYTES / BUS / 2)
    assert stride.nbytes == LEAST_BYTES


def test_one_late_state_is_no_reason() -> None:
    stride = Stride()
    for at in range(100):
        travel(stride, 0.0 if at % LATE_STATES else 1.0)
    assert stride.nbytes == LEAST_BYTES


def test_it_grows_until_training_waits_for_no_more_than_a_part_of_a_portion() -> None:
    """774 M parameters, 9.3 GB, in steps of 187 ms, where small portions bring it 15 ms late."""
    stride, nbytes = Stride(), 9_289_000_000
    for _ in range(20):
        travel(stride, waited(stride.nbytes, nbytes, 1e-4, 0.177))
    left = waited(stride.nbytes, nbytes, 1e-4, 0.177)
    assert left <= LATE_SHARE * stride.nbytes / BUS
    before = waited(stride.nbytes // 2, nbytes, 1e-4, 0.177)
    assert before > LATE_SHARE * (stride.nbytes // 2) / BUS, "and no further"


def test_what_set_out_before_a_change_says_nothing_of_it() -> None:
    stride = Stride()
    for _ in range(LATE_STATES):
        travel(stride, 1.0)
    grown = stride.nbytes
    assert grown == 2 * LEAST_BYTES
    for _ in range(10):
        stride.arrived(LEAST_BYTES, 1.0, LEAST_BYTES / BUS)
    assert stride.nbytes == grown


def test_nobody_waits_for_more_than_the_most() -> None:
    stride = Stride()
    for _ in range(100):
        travel(stride, 1.0)
    assert stride.nbytes == MOST_BYTES


def test_a_bad_beginning_is_forgotten() -> None:
    stride = Stride()
    while stride.nbytes < MOST_BYTES:
        travel(stride, 1.0)
    for _ in range(40 * TIMELY_STATES):
        travel(stride, 0.0)
    assert stride.nbytes == LEAST_BYTES


def test_it_does_not_go_back_and_forth_for_ever() -> None:
    """A state that comes in time with 32 MiB and not with 16: ever more seldom it is tried again."""
    stride, late = Stride(), []
    for at in range(10_000):
        is_late = stride.nbytes == LEAST_BYTES
        travel(stride, 1.0 if is_late else 0.0)
        late += [at] if is_late else []
    assert len(late) <= 2 * LATE_STATES * 10
    assert stride.nbytes <= 2 * LEAST_BYTES
