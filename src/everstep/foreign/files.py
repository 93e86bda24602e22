"""Somebody else's files, open for reading only. Every read is checked against the file's length before it allocates."""

import errno
import os
import stat
import zlib
from types import TracebackType
from typing import Self

from everstep.errors import Damaged, StoreFailed

BLOCK_BYTES = 4 << 20


class File:
    """One regular file. Links are followed: caches of downloaded models consist of them."""

    def __init__(self, path: str) -> None:
        self.path = path
        try:
            # O_NONBLOCK: a FIFO in the file's place must not hang us before its type is known.
            self._descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except (FileNotFoundError, NotADirectoryError) as none:
            raise Damaged(f"{path}: this file of the checkpoint is missing. Copy the checkpoint again.") from none
        except OSError as failed:
            raise StoreFailed(f"{path}: cannot be read ({failed.strerror}). Check its permissions.") from failed
        held = os.fstat(self._descriptor)
        self.size = held.st_size
        if not stat.S_ISREG(held.st_mode):
            self.close()
            raise Damaged(f"{path}: not a regular file. Check the path.")

    def read(self, offset: int, length: int) -> bytes:
        """Exactly `length` bytes; Damaged when the file does not hold them."""
        self.inside(offset, length)
        try:
            content = os.pread(self._descriptor, length, offset)
            while 0 < len(content) < length:  # a signal, or more than one call of the system can give
                more = os.pread(self._descriptor, length - len(content), offset + len(content))
                content = content + more if more else b""
        except OSError as failed:
            what = "a bad block" if failed.errno == errno.EIO else failed.strerror
            raise Damaged(f"{self.path}: bytes {offset} to {offset + length} cannot be read ({what}).") from failed
        if len(content) != length:
            raise Damaged(f"{self.path}: became shorter than {offset + length} bytes while it was read.")
        return content

    def read_into(self, offset: int, target: memoryview) -> None:
        """The same into memory of the caller's, a block at a time."""
        for at in range(0, len(target), BLOCK_BYTES):
            part = target[at : at + BLOCK_BYTES]
            part[:] = self.read(offset + at, len(part))

    def inside(self, offset: int, length: int) -> None:
        if offset < 0 or length < 0 or offset + length > self.size:
            raise Damaged(
                f"{self.path}: bytes {offset} to {offset + length} are expected, the file has {self.size}. "
                f"It was cut short, or the description is damaged; copy the checkpoint again."
            )

    def crc32(self, offset: int, length: int) -> int:
        """Of these bytes, read in blocks."""
        self.inside(offset, length)
        found = 0
        for at in range(offset, offset + length, BLOCK_BYTES):
            found = zlib.crc32(self.read(at, min(BLOCK_BYTES, offset + length - at)), found)
        return found

    def close(self) -> None:
        os.close(self._descriptor)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _t: type[BaseException] | None, _e: BaseException | None, _b: TracebackType | None) -> None:
        self.close()


def beside(folder: str, name: object, where: str) -> str:
    """The path of a file that a checkpoint names: in its own folder, nowhere else."""
    if not isinstance(name, str) or not name or name in (".", "..") or "/" in name or "\0" in name:
        raise Damaged(f"{where}: names a file outside the checkpoint's folder. Do not use this checkpoint.")
    return os.path.join(folder, name)


def listed(folder: str) -> list[str]:
    """The names in a folder, sorted; none if it is not there."""
    try:
        return sorted(os.listdir(folder))
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as failed:
        raise StoreFailed(f"{folder}: cannot be read ({failed.strerror}). Check its permissions.") from failed


def same(one: str, two: str) -> bool:
    """Whether two files hold the same bytes."""
    with File(one) as left, File(two) as right:
        return left.size == right.size and all(
            left.read(at, count) == right.read(at, count)
            for at in range(0, left.size, BLOCK_BYTES)
            if (count := min(BLOCK_BYTES, left.size - at))
        )
