"""What a directory's file system is and what a durable write costs there. One small file, removed again."""

import contextlib
import os
from collections.abc import Callable

from everstep.store.disk import LocalDisk

BLOCK = bytes(4096)


def sync_seconds(directory: str, count: int, clock: Callable[[], float]) -> list[float]:
    """How long each of `count` small synced appends took; OSError where nothing can be written."""
    disk = LocalDisk(directory)
    name = f".everstep-doctor.{os.urandom(6).hex()}.tmp"
    try:
        handle = disk.create(name)
        try:
            return [_append(disk, handle, clock) for _ in range(count)]
        finally:
            disk.close(handle)
            with contextlib.suppress(OSError):
                disk.remove(name)
    finally:
        disk.release()


def _append(disk: LocalDisk, handle: int, clock: Callable[[], float]) -> float:
    began = clock()
    disk.write(handle, [BLOCK])
    disk.sync(handle)
    return clock() - began


def file_system(path: str, mountinfo: str) -> str:
    """The type of the file system at `path`, from the text of /proc/self/mountinfo; 'unknown' when it does not say."""
    wanted, found, kind = os.path.realpath(path), -1, "unknown"
    for line in mountinfo.splitlines():
        left, mark, right = line.partition(" - ")
        fields = left.split(" ")
        if not mark or len(fields) < 5:
            continue
        point = fields[4].encode().decode("unicode_escape")  # spaces are written \040
        inside = wanted == point or wanted.startswith(point.rstrip("/") + "/")
        if inside and len(point) >= found:
            found, kind = len(point), right.split(" ")[0]
    return kind
