"""Tensors of a base, from its file into memory that is there already: by several threads, each piece digested while it
is still in the processor's cache, so that proving what is read costs next to nothing beside reading it. What belongs to
several places (`scatter`) is laid there from the cache as well.
"""

import ctypes
import os
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass
from itertools import islice

import torch

from everstep import native
from everstep.capture.digests import total
from everstep.errors import Damaged
from everstep.recover.exchange import Exchange
from everstep.recover.pages import memory
from everstep.recover.scatter import Scatter
from everstep.store import names
from everstep.store.base import Index, Stored
from everstep.store.disk import Files, Source
from everstep.store.manifest import BaseEntry
from everstep.types import DTYPE_BYTES, Pair, printed

THREADS = 4
"""A disk needs several readers to give all it has; beyond four none of those measured gave more."""
PER_PROCESSOR = 4
"""Of those, on one host: ranks that share few processors have enough to do with fewer."""
STRETCH_BYTES = 16 << 20
"""What one thread takes at a time, of a file and in one piece there, whichever tensors it holds."""
PIECE_BYTES = 1 << 20
"""Read and digested before the next: it stays in the second-level cache meanwhile."""
AHEAD = 8
"""So many stretches of the next file are asked for while the last ones of this are read."""
WIDEST_BYTES = 16
"""Of an element: no cut goes through one."""


Seat = torch.Tensor | Scatter
"""Where a tensor of a base goes."""
Then = Callable[[], None]
"""Called when the disk is about to have nothing more to do."""


@dataclass(frozen=True, slots=True)
class Span:
    """Bytes `first` to `last` of a tensor of the base."""

    stored: Stored
    first: int
    last: int


def fetch(
    disk: Files, rank: int, entry: BaseEntry, index: Index, targets: Mapping[str, Seat],
    then: Then = lambda: None,
) -> None:  # fmt: skip
    """Fill the targets, contiguous tensors in host memory, or parts of such; Damaged when any byte is not what was
    written.

    What is not among them is not read.
    """
    path = names.tensors(rank, entry.step, entry.epoch)
    wanted = [stored for stored in index.tensors if stored.tensor.name in targets]
    for stored in wanted:
        target = targets[stored.tensor.name]
        if isinstance(target, Scatter):
            continue
        if target.nbytes != stored.tensor.nbytes or not target.is_contiguous() or target.device.type != "cpu":
            raise ValueError(f"{stored.tensor.name}: {stored.tensor.nbytes} bytes have no place in such a target")
    sums: dict[str, list[Pair]] = {stored.tensor.name: [] for stored in wanted}
    stretches = list(_stretches(wanted))
    left: deque[list[Span] | Then] = deque([*stretches[:-THREADS], then, *stretches[-THREADS:]])
    try:
        threads = min(readers(), len(stretches) or 1)
        with opened(disk, path, threads) as sources, ThreadPoolExecutor(threads, "fetch") as pool:
            for found in pool.map(lambda source: _read(source, index.header_bytes, targets, left), sources):
                for name, pair in found:
                    sums[name].append(pair)
    except (OSError, EOFError) as bad:
        raise Damaged(f"base {names.short(path)}: cannot be read ({bad}).") from bad
    for stored in wanted:
        if printed(total(sums[stored.tensor.name])) != stored.digest:
            if isinstance(disk, Exchange):  # what another host passed on; here it may be as it was written
                fetch(disk.direct, rank, entry, index, targets)
                return
            if isinstance(seat := targets[stored.tensor.name], Scatter) and not seat.doubted:
                seat.doubted = True
                beside = torch.empty(seat.stand_in.shape, dtype=seat.stand_in.dtype)
                fetch(disk, rank, entry, index, {stored.tensor.name: beside})
                continue
            raise Damaged(f"base {names.short(path)}: tensor {stored.tensor.name!r} fails its digest.")


def readers() -> int:
    """How many threads read: fewer where ranks share few processors, as the launcher says."""
    told = os.environ.get("LOCAL_WORLD_SIZE", "")
    ranks = int(told) if told.isdecimal() else 1
    return max(2, min(THREADS, PER_PROCESSOR * len(os.sched_getaffinity(0)) // max(1, ranks)))


@contextmanager
def opened(disk: Files, path: str, times: int) -> Iterator[list[Source]]:
    """A file, open several times: the kernel reads ahead of each by itself, and threads that share one confuse it."""
    with ExitStack() as held:
        yield [held.enter_context(closing(disk.source(path))) for _ in range(times)]


def _stretches(wanted: Sequence[Stored]) -> Iterator[list[Span]]:
    """All bytes of these tensors as they follow each other in the file, cut into what one thread takes at a time."""
    stretch: list[Span] = []
    room = STRETCH_BYTES
    for stored in sorted(wanted, key=lambda stored: stored.offset):
        at = 0
        while at < stored.tensor.nbytes:
            last = min(stored.tensor.nbytes, at + room)
            stretch.append(Span(stored, at, last))
            room = (room - last + at) // WIDEST_BYTES * WIDEST_BYTES
            at = last
            if not room:
                yield stretch
                stretch, room = [], STRETCH_BYTES
    if stretch:
        yield stretch


def expect(disk: Files, rank: int, entry: BaseEntry, index: Index, wanted: Callable[[Stored], bool]) -> None:
    """Let the disk begin with the first of these tensors: they are fetched next. Whatever fails, fails then."""
    stretches = _stretches([stored for stored in index.tensors if wanted(stored)])
    with suppress(OSError), closing(disk.source(names.tensors(rank, entry.step, entry.epoch))) as source:
        for stretch in islice(stretches, AHEAD):
            _expect(source, index.header_bytes, stretch)


def _expect(source: Source, header_bytes: int, stretch: Sequence[Span]) -> None:
    """All of a stretch is asked for at once: while one piece of it is digested the disk has something to do."""
    start = stretch[0].stored.offset + stretch[0].first
    source.expect(header_bytes + start, stretch[-1].stored.offset + stretch[-1].last - start)


def _read(
    source: Source, header_bytes: int, targets: Mapping[str, Seat], left: deque[list[Span] | Then]
) -> list[tuple[str, Pair]]:
    """Read stretches until none are left; of each span, the sums that it adds to its tensor's digest."""
    found: list[tuple[str, Pair]] = []
    desk = memory(PIECE_BYTES)
    address = ctypes.addressof((ctypes.c_char * PIECE_BYTES).from_buffer(desk))
    while left:
        try:
            stretch = left.popleft()
        except IndexError:  # another thread took the last
            break
        if callable(stretch):
            stretch()
            continue
        with suppress(IndexError):
            if not callable(later := left[THREADS]):
                _expect(source, header_bytes, later)
        for span in stretch:
            name, width = span.stored.tensor.name, DTYPE_BYTES[span.stored.tensor.dtype]
            seat, offset = targets[name], header_bytes + span.stored.offset
            for at, count in _pieces(span, seat):
                if isinstance(seat, Scatter):
                    source.read_into(offset + at, desk[:count])
                    pair = seat.put(at // width, count // width, address)
                else:
                    where = seat.data_ptr() + at
                    source.read_into(offset + at, memoryview((ctypes.c_char * count).from_address(where)).cast("B"))
                    (pair,) = native.digest([where], [count // width], [width], [at // width], 1)
                found.append((name, pair))
    return found


def _pieces(span: Span, seat: Seat) -> Iterator[tuple[int, int]]:
    """What of a span is read at a time: where it begins and how long it is. Rows stay whole where they are laid out."""
    row = seat.row_bytes if isinstance(seat, Scatter) else 1
    at = span.first
    while at < span.last:
        count = min(PIECE_BYTES - (at + PIECE_BYTES) % row if row <= PIECE_BYTES else PIECE_BYTES, span.last - at)
        yield at, count
        at += count
