"""What is read of a base, cut into what one thread takes at a time, and that into what it reads at a time."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch

from everstep.recover.pump import Course
from everstep.recover.scatter import Scatter
from everstep.store import names
from everstep.store.base import Index, Stored
from everstep.store.manifest import BaseEntry

STRETCH_BYTES = 16 << 20
"""What one thread takes at a time, at most."""
SHARES = 4
"""Into so many stretches each thread's part of a file is cut at least, or the last ones would be waited for."""
PIECE_BYTES = 1 << 20
"""Read and digested before the next: it stays in the second-level cache meanwhile."""
WIDEST_BYTES = 16
"""Of an element: no cut goes through one."""

Seat = torch.Tensor | Scatter
"""Where a tensor of a base goes."""


@dataclass(frozen=True, slots=True, eq=False)
class Job:
    """Tensors of a writer's base, and where they go; what has no target is not read."""

    rank: int
    entry: BaseEntry
    index: Index
    targets: Mapping[str, Seat]

    @property
    def path(self) -> str:
        return names.tensors(self.rank, self.entry.step, self.entry.epoch)

    @property
    def wanted(self) -> list[Stored]:
        """In the order of the file."""
        found = [stored for stored in self.index.tensors if stored.tensor.name in self.targets]
        return sorted(found, key=lambda stored: stored.offset)

    @property
    def course(self) -> Course:
        return Course.of(self.path, self.index, self.wanted)


@dataclass(frozen=True, slots=True)
class Span:
    """Bytes `first` to `last` of a tensor of the base."""

    stored: Stored
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class Stretch:
    """What one thread takes at a time, of a file and in one piece there, whichever tensors it holds."""

    job: Job
    spans: list[Span]

    @property
    def end(self) -> int:
        """Where it ends in the file."""
        return self.job.index.header_bytes + self.spans[-1].stored.offset + self.spans[-1].last


def cut(job: Job, threads: int) -> Iterator[Stretch]:
    """All bytes of its tensors, as they follow each other in the file, for so many threads."""
    wanted = job.wanted
    share = sum(stored.tensor.nbytes for stored in wanted) // (threads * SHARES) // WIDEST_BYTES * WIDEST_BYTES
    length = min(STRETCH_BYTES, max(PIECE_BYTES, share))
    spans: list[Span] = []
    room = length
    for stored in wanted:
        at = 0
        while at < stored.tensor.nbytes:
            last = min(stored.tensor.nbytes, at + room)
            spans.append(Span(stored, at, last))
            room = (room - last + at) // WIDEST_BYTES * WIDEST_BYTES
            at = last
            if not room:
                yield Stretch(job, spans)
                spans, room = [], length
    if spans:
        yield Stretch(job, spans)


def pieces(span: Span, seat: Seat) -> Iterator[tuple[int, int]]:
    """What of a span is read at a time: where it begins and how long it is. Rows stay whole where they are laid out."""
    row = seat.row_bytes if isinstance(seat, Scatter) else 1
    at = span.first
    while at < span.last:
        count = min(PIECE_BYTES - (at + PIECE_BYTES) % row if row <= PIECE_BYTES else PIECE_BYTES, span.last - at)
        yield at, count
        at += count
