"""Earliest deadline first is as punctual as any order can be, and says by how much it is late."""

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from everstep.tune.deadline import Job, Span, earliest_deadline_first

whole = st.integers(0, 30).map(float)
jobs = st.lists(st.builds(Job, whole, whole, st.integers(1, 9).map(float)), max_size=8)


def demanded(table: list[Job]) -> float:
    """What no order can avoid: jobs that must all be done between two moments, against the time between them."""
    late = 0.0
    for release in {job.release_seconds for job in table}:
        for deadline in {job.deadline_seconds for job in table}:
            inside = [j for j in table if j.release_seconds >= release and j.deadline_seconds <= deadline]
            if inside:
                late = max(late, release + sum(job.seconds for job in inside) - deadline)
    return late


@settings(deadline=None)
@given(jobs)
def test_it_is_late_by_what_no_order_can_avoid(table: list[Job]) -> None:
    found = earliest_deadline_first(table)
    assert found.late_seconds == demanded(table)
    assert found.feasible == (demanded(table) == 0)


@settings(deadline=None)
@given(jobs, st.integers(1, 5))
def test_whole_chunks_make_it_later_by_at_most_one_chunk(table: list[Job], chunk: int) -> None:
    assert earliest_deadline_first(table, chunk_seconds=float(chunk)).late_seconds <= demanded(table) + chunk


@settings(deadline=None)
@given(jobs, st.integers(0, 5))
def test_one_job_at_a_time_none_before_its_release_and_all_of_each(table: list[Job], chunk: int) -> None:
    spans = earliest_deadline_first(table, chunk_seconds=float(chunk)).spans
    for one, two in pairwise(spans):
        assert one.start_seconds + one.seconds <= two.start_seconds
    for at, job in enumerate(table):
        own = [span for span in spans if span.job == at]
        assert sum(span.seconds for span in own) == job.seconds
        assert min(span.start_seconds for span in own) >= job.release_seconds


@settings(deadline=None)
@given(jobs, st.integers(1, 5))
def test_a_job_gives_way_only_where_a_chunk_ends(table: list[Job], chunk: int) -> None:
    spans = earliest_deadline_first(table, chunk_seconds=float(chunk)).spans
    for at in range(len(table)):
        own = [span for span in spans if span.job == at]
        assert all(span.seconds % chunk == 0 for span in own[:-1])


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(1, 5), st.integers(0, 40)), min_size=1, max_size=6), st.integers(0, 10))
def test_updates_inside_backward_give_every_piece_a_whole_step(pieces: list[tuple[int, int]], spare: int) -> None:
    """Each piece may be read from its own update to its next: all of them in place, as soon as they fit the step."""
    step = sum(seconds for seconds, _ in pieces) + spare
    table = [
        Job(float(at * step + update % step), float((at + 1) * step + update % step), float(seconds))
        for at in range(5)
        for seconds, update in pieces
    ]
    assert earliest_deadline_first(table).feasible


@pytest.mark.parametrize(
    "table, spans, late",
    [
        ([], (), 0.0),
        ([Job(0, 5, 3), Job(1, 2, 1)], (Span(0, 0, 1), Span(1, 1, 1), Span(0, 2, 2)), 0.0),
        ([Job(0, 5, 3), Job(1, 6, 1)], (Span(0, 0, 3), Span(1, 3, 1)), 0.0),
        ([Job(0, 2, 3), Job(7, 8, 1)], (Span(0, 0, 3), Span(1, 7, 1)), 1.0),
        ([Job(0, 4, 2), Job(0, 4, 3)], (Span(0, 0, 2), Span(1, 2, 3)), 1.0),
    ],
)
def test_who_is_due_first_goes_first(table: list[Job], spans: tuple[Span, ...], late: float) -> None:
    found = earliest_deadline_first(table)
    assert (found.spans, found.late_seconds) == (spans, late)
