"""Room that a run keeps on its disk, so that it can be pruned when nothing else is left: what goes is removed only
after a manifest without it is written, and that takes a little room first."""

import os
from collections.abc import Callable
from contextlib import suppress
from errno import EDQUOT, ENOSPC
from typing import TypeVar

from everstep.errors import StoreFailed
from everstep.store.disk import LocalDisk, write_new
from everstep.store.names import RESERVE

RESERVE_BYTES = 1 << 20
OF_WHAT_IS_FREE = 64

T = TypeVar("T")


def keep(disk: LocalDisk) -> None:
    """Take the room, if it is not taken yet. Of a disk that has little, only a little; of a full one, nothing."""
    with suppress(OSError):  # another rank was first, or somebody else filled the disk
        free = os.statvfs(disk.root)
        nbytes = min(RESERVE_BYTES, free.f_bavail * free.f_frsize // OF_WHAT_IS_FREE)
        if nbytes and not disk.exists(RESERVE):
            write_new(disk, RESERVE, [bytes(nbytes)])


def with_it(disk: LocalDisk, work: Callable[[], T]) -> T:
    """What `work` returns. Where the disk has no room for it, it is done again with what is kept."""
    try:
        return work()
    except OSError as refused:
        if refused.errno not in (ENOSPC, EDQUOT):
            raise
    with suppress(FileNotFoundError):
        disk.remove(RESERVE)
    try:
        return work()
    except OSError as refused:
        if refused.errno not in (ENOSPC, EDQUOT):
            raise
        raise StoreFailed(
            f"{disk.root}: a manifest must be written before anything goes, and the disk has no room for it "
            f"({refused.strerror}). The run is sound. Make a few MiB of room with something else than its files."
        ) from refused
    finally:
        keep(disk)
