"""Which records a disk is given: never so many that the ring waits for them."""

import pytest

from everstep.keeper.admission import RECORDS, Admission

MB = 10**6


def told(arrivals: list[tuple[float, int]]) -> Admission:
    admission = Admission()
    for now, nbytes in arrivals:
        admission.arrived(nbytes, now)
    return admission


def test_small_records_are_written_at_once() -> None:
    assert told([(0.0, 1000)]).verdict(0.0, 0.0) == "write"


def test_a_large_record_waits_until_it_is_known_how_fast_they_come() -> None:
    arrivals = [(0.03 * at, 500 * MB) for at in range(RECORDS // 2)]
    for seen in range(1, RECORDS // 2):
        assert told(arrivals[:seen]).verdict(1e9, 0.03 * seen) == "wait"
    assert told(arrivals).verdict(1e9, 0.03 * RECORDS) == "spare"


def test_large_records_that_come_slowly_are_written() -> None:
    assert told([(2.0 * at, 500 * MB) for at in range(RECORDS // 2)]).verdict(1e9, 6.0) == "write"


@pytest.mark.parametrize(("after", "verdict"), [(0.1, "wait"), (1.0, "write")])
def test_a_record_alone_is_written_once_the_disk_would_have_kept_up(after: float, verdict: str) -> None:
    assert told([(0.0, 500 * MB)]).verdict(1e9, after) == verdict


def test_an_unknown_disk_is_taken_for_a_slow_one() -> None:
    arrivals = [(at, 500 * MB) for at in range(RECORDS)]
    assert told(arrivals).verdict(0.0, RECORDS) == "spare"
    assert told(arrivals).verdict(1e9, RECORDS) == "write"


def test_only_the_last_records_count() -> None:
    early = [(0.001 * at, 500 * MB) for at in range(RECORDS)]
    late = [(10.0 + at, 500 * MB) for at in range(RECORDS)]
    assert told(early + late).verdict(1e9, 10.0 + RECORDS) == "write"


def test_after_a_pause_it_is_found_out_anew() -> None:
    admission = told([(0.03 * at, 500 * MB) for at in range(RECORDS)])
    admission.clear()
    admission.arrived(500 * MB, 40.0)
    assert admission.verdict(1e9, 40.0) == "wait"
