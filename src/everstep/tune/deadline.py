"""One bus, jobs with release times and deadlines: always copy the one that is due first.

Preemptive, this is optimal: when any order meets all deadlines this one does, and when none does no other is less late.
A copy on its way is not called back, so a job gives way only where a chunk of it ends; that makes the bus later by at
most one chunk, because only the one chunk under way can stand before a job that is due earlier.
"""

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Job:
    """`seconds` of bus time, not before `release_seconds`, due at `deadline_seconds`."""

    release_seconds: float
    deadline_seconds: float
    seconds: float


@dataclass(frozen=True, slots=True)
class Span:
    """The bus carries job number `job` from `start_seconds` on for `seconds`."""

    job: int
    start_seconds: float
    seconds: float


@dataclass(frozen=True, slots=True)
class Timetable:
    """Who has the bus when, in order of time; `late_seconds` is by how much the latest job misses its deadline."""

    spans: tuple[Span, ...]
    late_seconds: float

    @property
    def feasible(self) -> bool:
        return self.late_seconds == 0


def earliest_deadline_first(jobs: Sequence[Job], *, chunk_seconds: float = 0.0) -> Timetable:
    """Give the bus to the released job that is due first; among equals, to the one named first.

    Deadlines need not agree: an optimizer step inside backward updates every parameter at its own time, so each piece
    gets a window of a whole step. Jobs of several steps are given with the times of those steps.
    """
    waiting = sorted(range(len(jobs)), key=lambda at: jobs[at].release_seconds, reverse=True)
    due: list[tuple[float, int]] = []
    left = [job.seconds for job in jobs]
    spans: list[Span] = []
    now, late = -math.inf, 0.0
    while waiting or due:
        if not due:
            now = max(now, jobs[waiting[-1]].release_seconds)
        while waiting and jobs[waiting[-1]].release_seconds <= now:
            at = waiting.pop()
            heapq.heappush(due, (jobs[at].deadline_seconds, at))
        deadline, at = due[0]
        end = now + left[at]
        if waiting and jobs[waiting[-1]].release_seconds < end:
            done = jobs[at].seconds - left[at]
            end = min(end, _gives_way(now, jobs[waiting[-1]].release_seconds, done, chunk_seconds))
        if end >= now + left[at]:
            heapq.heappop(due)
            late = max(late, end - deadline)
        _add(spans, Span(at, now, end - now))
        left[at] -= end - now
        now = end
    return Timetable(tuple(spans), late)


def _gives_way(now: float, release_seconds: float, done_seconds: float, chunk_seconds: float) -> float:
    """When the job under way, `done_seconds` of it copied, lets a newly released one pass: where its chunk ends."""
    if chunk_seconds <= 0:
        return release_seconds
    chunks = math.ceil((done_seconds + release_seconds - now) / chunk_seconds)
    return max(release_seconds, now + chunks * chunk_seconds - done_seconds)


def _add(spans: list[Span], span: Span) -> None:
    """A job that goes on where it stopped is one span."""
    if spans and spans[-1].job == span.job:
        last = spans[-1]
        spans[-1] = Span(last.job, last.start_seconds, last.seconds + span.seconds)
    else:
        spans.append(span)
