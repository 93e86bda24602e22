"""Tensors of a base, from its file into memory that is there already: by several threads, each piece digested while it
is still in the processor's cache, so that proving what is read costs next to nothing beside reading it. What belongs to
several places (`scatter`) is laid there from the cache as well.
"""

import ctypes
import os
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from types import TracebackType
from typing import Self

import torch

from everstep import native
from everstep.capture.digests import total
from everstep.errors import Damaged
from everstep.recover.exchange import Exchange
from everstep.recover.pages import memory
from everstep.recover.pump import Pump, ranks_here
from everstep.recover.scatter import Scatter
from everstep.recover.stretches import PIECE_BYTES, Job, Seat, Stretch, cut, pieces
from everstep.store import names
from everstep.store.base import Index
from everstep.store.disk import Files, Source
from everstep.store.manifest import BaseEntry
from everstep.types import DTYPE_BYTES, Pair, printed

THREADS = 4
"""They digest and lay out what the pump has brought; beyond four none of the disks measured was used better."""
PER_PROCESSOR = 8
"""Of those, on one host: ranks that share few processors have enough to do with fewer."""
Found = list[tuple[str, Pair]]
"""What pieces add to the digests of their tensors."""


def fetch(
    disk: Files, rank: int, entry: BaseEntry, index: Index, targets: Mapping[str, Seat], pump: Pump | None = None
) -> None:
    """Fill the targets, contiguous tensors in host memory, or parts of such; Damaged when any byte is not what was
    written.

    What is not among them is not read.
    """
    job = Job(rank, entry, index, targets)
    if pump is not None and pump.knows(job.path):
        _fetch(disk, job, pump)
        return
    with Pump(disk, [job.course]) as own:
        _fetch(disk, job, own)


def _fetch(disk: Files, job: Job, pump: Pump | None = None) -> None:
    with Reading(disk, pump) as reading:
        reading.begin(job)
        reading.finish(job)


class Reading:
    """Threads that read bases one after the other, as they were begun. Who is done with one finds the next on its way.

    They follow a pump, if there is one. When this ends nothing is read any more, whether it has been finished or not.
    """

    def __init__(self, disk: Files, pump: Pump | None = None) -> None:
        self._disk, self._pump = disk, pump
        self._threads = readers()
        self._pool = ThreadPoolExecutor(self._threads, "everstep-fetch")
        self._coming: dict[Job, list[Future[Found]]] = {}
        self._thread = threading.local()
        self._desks: list[_Desk] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _kind: type | None, _error: BaseException | None, _trace: TracebackType | None) -> None:
        self._pool.shutdown(cancel_futures=True)
        for desk in self._desks:
            desk.close()

    def begin(self, job: Job) -> None:
        _refuse_misfits(job)
        self._coming[job] = [self._pool.submit(self._read, stretch) for stretch in cut(job, self._threads)]

    def finish(self, job: Job) -> None:
        """All of it is where it goes; Damaged unless that is what was written."""
        sums: dict[str, list[Pair]] = {name: [] for name in job.targets}
        try:
            for future in self._coming.pop(job):
                for name, pair in future.result():
                    sums[name].append(pair)
        except (OSError, EOFError) as bad:
            raise Damaged(f"base {names.short(job.path)}: cannot be read ({bad}).") from bad
        _prove(self._disk, job, sums)

    def _read(self, stretch: Stretch) -> Found:
        try:
            desk: _Desk = self._thread.desk
        except AttributeError:
            desk = self._thread.desk = _Desk(self._disk)
            self._desks.append(desk)
        source = desk.source(stretch.job.path)
        if self._pump is not None:
            self._pump.wait(stretch.job.path, stretch.end)
        return list(_read(source, stretch, desk))


class _Desk:
    """Of one thread: room for a piece that is laid elsewhere, and the file that it reads.

    Each opens it for itself: the kernel reads ahead of each, and threads that share one confuse it.
    """

    def __init__(self, disk: Files) -> None:
        self._disk = disk
        self._path = ""
        self._source: Source | None = None
        self.room = memory(PIECE_BYTES)
        self.address = ctypes.addressof((ctypes.c_char * PIECE_BYTES).from_buffer(self.room))

    def source(self, path: str) -> Source:
        if self._source is None or self._path != path:
            self.close()
            self._path, self._source = path, self._disk.source(path)
        return self._source

    def close(self) -> None:
        if self._source is not None:
            self._source.close()
            self._source = None


def _read(source: Source, stretch: Stretch, desk: _Desk) -> Iterator[tuple[str, Pair]]:
    """Of each piece of a stretch, what it adds to its tensor's digest; it is where it belongs then."""
    job = stretch.job
    for span in stretch.spans:
        name, width = span.stored.tensor.name, DTYPE_BYTES[span.stored.tensor.dtype]
        seat, offset = job.targets[name], job.index.header_bytes + span.stored.offset
        for at, count in pieces(span, seat):
            if isinstance(seat, Scatter):
                source.read_into(offset + at, desk.room[:count])
                pair = seat.put(at // width, count // width, desk.address)
            else:
                where = seat.data_ptr() + at
                source.read_into(offset + at, memoryview((ctypes.c_char * count).from_address(where)).cast("B"))
                (pair,) = native.digest([where], [count // width], [width], [at // width], 1)
            yield name, pair


def _refuse_misfits(job: Job) -> None:
    for stored in job.wanted:
        target = job.targets[stored.tensor.name]
        if isinstance(target, Scatter):
            continue
        if target.nbytes != stored.tensor.nbytes or not target.is_contiguous() or target.device.type != "cpu":
            raise ValueError(f"{stored.tensor.name}: {stored.tensor.nbytes} bytes have no place in such a target")


def _prove(disk: Files, job: Job, sums: Mapping[str, list[Pair]]) -> None:
    for stored in job.wanted:
        name = stored.tensor.name
        if printed(total(sums[name])) != stored.digest:
            if isinstance(disk, Exchange):  # what another host passed on; here it may be as it was written
                _fetch(disk.direct, job)
                return
            if isinstance(seat := job.targets[name], Scatter) and not seat.doubted:
                seat.doubted = True
                beside = torch.empty(seat.stand_in.shape, dtype=seat.stand_in.dtype)
                _fetch(disk, replace(job, targets={name: beside}))
                continue
            raise Damaged(f"base {names.short(job.path)}: tensor {name!r} fails its digest.")


def readers() -> int:
    """How many threads read: fewer where ranks share few processors."""
    return max(2, min(THREADS, PER_PROCESSOR * len(os.sched_getaffinity(0)) // ranks_here()))


@contextmanager
def opened(disk: Files, path: str, times: int) -> Iterator[list[Source]]:
    """A file, open several times: the kernel reads ahead of each by itself, and threads that share one confuse it."""
    with ExitStack() as held:
        yield [held.enter_context(closing(disk.source(path))) for _ in range(times)]
