"""Bases of several writers, each being read while the one before is dealt with.

Where everything goes is planned ahead, so that the disk has something to do from the first to the last: planning and
placing are Python's work, and reading waits for the disk.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import replace
from types import TracebackType
from typing import Self

from everstep.errors import Damaged
from everstep.recover import seats
from everstep.recover.fetch import Reading
from everstep.recover.pump import Pump
from everstep.recover.rooms import BLOCK_BYTES, Rooms
from everstep.recover.stretches import Job
from everstep.recover.writers import Writers
from everstep.store.disk import Files

AHEAD = 2
"""Writers, besides the one that is dealt with: more would be planned for longer than they are read."""


class Coming:
    """The writers' bases in turn. One that has a log is not read ahead, nor what has no place in the program: the
    first would have to be replayed in memory that the next is read to, the second would fill it."""

    def __init__(self, files: Files, writers: Writers, turns: Sequence[int], wants: seats.Wants, pump: Pump) -> None:
        self._reading = Reading(files, pump)
        self._planned = _planned(writers, turns, wants)
        self._begun: deque[Job] = deque()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._begun.clear()
        self._planned = iter(())
        self._reading.__exit__(kind, error, trace)

    def take(self, at: int) -> seats.Filled | None:
        """Where the tensors of a writer's base are now, in turn. None, and then also of those that follow, if it is not
        read ahead or is damaged: then another base may do, and what is planned is not what will be needed."""
        while len(self._begun) <= AHEAD and (job := next(self._planned, None)) is not None:
            self._reading.begin(job)
            self._begun.append(job)
        if self._begun:
            job = self._begun.popleft()
            assert job.rank == at
            try:
                self._reading.finish(job)
            except Damaged:
                self.__exit__(None, None, None)
            else:
                return dict(job.targets)
        return None


def _planned(writers: Writers, turns: Sequence[int], wants: seats.Wants) -> Iterator[Job]:
    """Where everything goes if the writers' parts are taken in turn; the wants themselves are as they were."""
    later = {logical: [replace(want) for want in held] for logical, held in wants.items()}
    for at in turns:
        route, index, beside = writers.routes(at)[0], writers.index(at), Rooms()
        if route.records:
            return
        targets = seats.planned(index, later, beside)
        if beside.taken > BLOCK_BYTES:
            return
        for held in index.held.values():
            for want in later.get(held.logical, ()):
                want.take(held)
        yield Job(at, route.base, index, targets)
