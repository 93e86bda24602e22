"""Bodies of records, the next being read while the last is replayed: by several threads, into huge pages.

Replaying needs processors, reading mostly waits. One record is read ahead, no more: it is as large as all gradients.
"""

from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial

from everstep.log import frame, reader
from everstep.log.reader import Located
from everstep.recover.exchange import Exchange
from everstep.recover.fetch import THREADS, opened
from everstep.recover.pages import Pages
from everstep.store.disk import Files, Source

STRETCH_BYTES = 8 << 20
"""What one thread reads at a time."""


def bodies(disk: Files, records: Sequence[Located], pages: Pages | None = None) -> Iterator[tuple[Located, memoryview]]:
    """The records' bodies, checked, one after the other; Damaged when one is not what was written. They lie in memory
    of `pages`, which may be used again for others."""
    with ThreadPoolExecutor(THREADS, "everstep-body") as readers, ThreadPoolExecutor(1, "everstep-ahead") as ahead:
        read = partial(_body, disk, readers, pages or Pages())
        following: list[Future[memoryview]] = []
        for at, located in enumerate(records):
            current = following.pop() if following else ahead.submit(read, located)
            found = [current.result()]
            del current  # it would hold the body, and with it the memory, for as long as the next one is read
            following += [ahead.submit(read, record) for record in records[at + 1 : at + 2]]
            yield located, found.pop()


def _body(disk: Files, readers: ThreadPoolExecutor, pages: Pages, located: Located) -> memoryview:
    """One body, checked. Memory for it was checked against the length of the file."""
    data = pages.take(located.frame.nbytes - frame.FRAME.size)
    starts = range(0, len(data), STRETCH_BYTES)
    times = min(THREADS, len(starts))
    try:
        with opened(disk, located.path, times) as sources:
            shares = [starts[at::times] for at in range(times)]
            list(readers.map(lambda source, share: _read(source, located.offset, data, share), sources, shares))
            frame.check_body(located.frame, data)
            return data[: located.frame.body_bytes]
    except (frame.BadFrame, EOFError, OSError):
        direct = disk.direct if isinstance(disk, Exchange) else disk
        with opened(direct, located.path, 1) as (source,):
            return reader.body(source, located)  # it says what is wrong, and what is still good


def _read(source: Source, offset: int, data: memoryview, share: range) -> None:
    for at in share:
        source.read_into(offset + at, data[at : at + STRETCH_BYTES])
