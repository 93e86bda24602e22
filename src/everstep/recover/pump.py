"""Brings what will be read into the kernel's cache: by one thread, one file after the other, from front to back.

Disks that count requests, as those of clouds do, give the more the larger those are, and the kernel asks for the most
at once of one who reads in order. So one does that, and the many who digest and lay out what they read follow.
"""

import os
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from everstep.store.base import Index, Stored
from everstep.store.disk import Files
from everstep.store.spare import spare

LEAD_BYTES = 1 << 30
"""So far ahead of those who read, at most."""
LEAD_SHARE = 4
"""Less where memory is short: one part in so many of a rank's share of it, or it would be gone when they come."""
STEP_BYTES = 16 << 20
"""Brought at a time: who waits for it need not wait for more."""
PRIORITY = -10
"""Where the system lets us."""


@dataclass(frozen=True, slots=True)
class Course:
    """What will be read of a file, in its order."""

    path: str
    spans: Sequence[tuple[int, int]]

    @staticmethod
    def of(path: str, index: Index, wanted: Iterable[Stored]) -> "Course":
        """These tensors of a base: those that follow each other in one span."""
        spans: list[tuple[int, int]] = []
        for stored in sorted(wanted, key=lambda stored: stored.offset):
            first = index.header_bytes + stored.offset
            last = first + stored.tensor.nbytes
            if spans and first == spans[-1][1]:
                spans[-1] = (spans[-1][0], last)
            else:
                spans.append((first, last))
        return Course(path, spans)

    @property
    def end(self) -> int:
        return self.spans[-1][1] if self.spans else 0

    def steps(self) -> Iterator[tuple[int, int]]:
        for first, last in self.spans:
            for at in range(first, last, STEP_BYTES):
                yield at, min(at + STEP_BYTES, last)


class Pump:
    """Nothing depends on it but time: whoever reads waits until it has been there, or has ended."""

    def __init__(self, files: Files, courses: Sequence[Course]) -> None:
        self._files, self._courses = files, courses
        self._starts: dict[str, int] = {}
        total = 0
        for course in courses:
            self._starts[course.path] = total
            total += course.end
        self._lead = max(STEP_BYTES, min(LEAD_BYTES, spare().nbytes // ranks_here() // LEAD_SHARE))
        self._brought = self._asked = 0
        self._over = False
        self._turn = threading.Condition()
        self._thread = threading.Thread(target=self._run, name="everstep-pump", daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _kind: type | None, _error: BaseException | None, _trace: TracebackType | None) -> None:
        self._end()
        self._thread.join()

    def knows(self, path: str) -> bool:
        """Whether it will come to this file."""
        return path in self._starts

    def wait(self, path: str, end: int) -> None:
        """For what is read of a file before this offset, and in files before it."""
        if path not in self._starts:
            return
        goal = self._starts[path] + end
        with self._turn:
            if goal > self._asked:
                self._asked = goal
                self._turn.notify_all()
            self._turn.wait_for(lambda: self._over or self._brought >= goal)

    def _run(self) -> None:
        with suppress(OSError):  # it takes little of a processor, but at once: the disk waits meanwhile
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), PRIORITY)
        try:
            for course in self._courses:
                start = self._starts[course.path]
                with (
                    suppress(OSError),
                    closing(self._files.source(course.path)) as source,
                ):
                    for first, last in course.steps():
                        if not self._may(start + first):
                            return
                        source.expect(first, last - first)
                        self._reached(start + last)
                self._reached(start + course.end)
        finally:
            self._end()

    def _may(self, at: int) -> bool:
        """Go on from here, once those who read are near; False to end."""
        with self._turn:
            self._turn.wait_for(lambda: self._over or at < self._asked + self._lead)
            return not self._over

    def _reached(self, at: int) -> None:
        with self._turn:
            self._brought = at
            self._turn.notify_all()

    def _end(self) -> None:
        with self._turn:
            self._over = True
            self._turn.notify_all()


def ranks_here() -> int:
    """How many ranks share this host, as the launcher says."""
    told = os.environ.get("LOCAL_WORLD_SIZE", "")
    return max(1, int(told)) if told.isdecimal() else 1
