"""What a piece of work took in this process: seconds, bytes read and written, memory beyond what stays."""

import contextlib
import mmap
import os
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

STRETCH_BYTES = 64 << 20
BLOCK_BYTES = 1 << 20
"""A buffer of this size gave a raw read more than one of 8 MiB."""
READERS = 4
"""On a host, whichever ranks they are of."""
POPULATE_WRITE = 23
"""Of madvise: pages for all of it, now."""
REPORTED = Path("/sys/module/page_reporting/parameters/reported_kib")


@dataclass(frozen=True, slots=True)
class Taken:
    """`fetched`: read from the disk itself, for this process. `written`: to files; what ranks say to each other through
    sockets is not in it."""

    seconds: float
    fetched: int
    written: int
    extra: int
    """Memory at its highest, beyond what was there before or stays afterwards, whichever is more."""


def gauge(work: Callable[[], object]) -> Taken:
    """Run it and look before and after. Linux only: nothing else says how much was read."""
    Path("/proc/self/clear_refs").write_text("5")  # the high-water mark begins anew
    before, memory = _io(), _status("VmRSS")
    began = time.perf_counter()
    work()
    spent = time.perf_counter() - began
    after, peak = _io(), _status("VmHWM")
    stays = max(memory, _status("VmRSS"))
    return Taken(
        spent, after["read_bytes"] - before["read_bytes"], after["write_bytes"] - before["write_bytes"],
        max(0, peak - stays),
    )  # fmt: skip


def together(ranks: list[Taken]) -> Taken:
    """Of ranks that began at once: the slowest, everything read and written, the most memory of one."""
    told = [asdict(one) for one in ranks]
    total = {key: sum(one[key] for one in told) for key in ("fetched", "written")}
    return Taken(max(one.seconds for one in ranks), extra=max(one.extra for one in ranks), **total)


def evict(root: Path) -> None:
    """Forget what the page cache holds of these files; they were synced when they were written."""
    for path in files(root):
        descriptor = os.open(path, os.O_RDONLY)
        os.fdatasync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)


@contextlib.contextmanager
def backed(nbytes: int) -> Iterator[None]:
    """Touch so much memory, and give it back at the end: what is measured next finds memory that the machine really
    has.

    A hypervisor takes free memory back after seconds, and gives it again more slowly than a disk reads. Whoever happens
    to need it then would pay for what another way left; and on a host of its own nobody does. Ranks wait for each other
    inside, or what the first gave back would be gone before the last is done.
    """
    room = mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with contextlib.closing(room):
        with contextlib.suppress(OSError):  # a kernel that lacks it is measured as it is
            room.madvise(mmap.MADV_HUGEPAGE)
            room.madvise(POPULATE_WRITE)
        yield


def taken_back() -> int:
    """KiB that the hypervisor has taken back so far; 0 where none says so."""
    with contextlib.suppress(OSError, ValueError):
        return int(REPORTED.read_text())
    return 0


def warm(root: Path) -> None:
    for path in files(root):
        read([path], 0, path.stat().st_size, threads=1)


def files(root: Path) -> list[Path]:
    return sorted(path for path in root.rglob("*") if path.is_file())


def read(paths: list[Path], first: int, count: int, threads: int) -> None:
    """`count` bytes of the files one after the other from byte `first` on, around the end if need be; nothing is done
    with them. Where there are several threads, each takes the next stretch in turn."""
    sizes = [path.stat().st_size for path in paths]
    left = deque(range(0, count, STRETCH_BYTES))

    def stretches() -> None:
        buffer = memoryview(bytearray(BLOCK_BYTES))
        while left:
            with contextlib.suppress(IndexError):  # another thread took the last
                at = left.popleft()
                for path, offset, length in _spans(paths, sizes, first + at, min(STRETCH_BYTES, count - at)):
                    descriptor = os.open(path, os.O_RDONLY)
                    for place in range(offset, offset + length, BLOCK_BYTES):
                        os.preadv(descriptor, [buffer[: min(BLOCK_BYTES, offset + length - place)]], place)
                    os.close(descriptor)

    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(lambda _: stretches(), range(threads)))


def _spans(paths: list[Path], sizes: list[int], first: int, count: int) -> Iterator[tuple[Path, int, int]]:
    total = sum(sizes)
    while count and total:
        first %= total
        at = first
        for path, size in zip(paths, sizes, strict=True):
            if at < size:
                length = min(size - at, count)
                yield path, at, length
                first, count = first + length, count - length
                break
            at -= size


def _io() -> dict[str, int]:
    lines = Path("/proc/self/io").read_text().split("\n")
    return {key: int(value) for key, _, value in (line.partition(": ") for line in lines if line)}


def _status(key: str) -> int:
    lines = Path("/proc/self/status").read_text().split("\n")
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{key}:"))
