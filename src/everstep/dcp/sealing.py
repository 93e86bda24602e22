"""A data file that is hashed while it is written. What torch writes goes through it unchanged and is not copied."""

import io
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, Any

import xxhash

from everstep.dcp.record import BLOCK_BYTES, Sealed
from everstep.store.disk import Disk

GATHERED_BYTES = 256 << 10
"""Shorter pieces are put together first: the head of an archive is some forty writes of a few bytes each."""


class SealingFile(io.RawIOBase):
    """A file that is only appended to. Nothing of it is durable before `seal`."""

    def __init__(self, disk: Disk, name: str) -> None:
        super().__init__()
        self._disk = disk
        self._name = name
        self._handle = disk.create(name)
        self._nbytes = 0
        self._block = xxhash.xxh3_128()
        self._room = BLOCK_BYTES
        self._checksums: list[str] = []

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._nbytes

    def write(self, data: Any) -> int:
        """Block by block, so that what is hashed is still in the processor's cache when the kernel copies it."""
        view = memoryview(data).cast("B")
        count = len(view)
        if self._handle < 0:  # given up; what lay in a buffer is flushed into it when that is collected
            return count
        while view:
            part, view = view[: self._room], view[self._room :]
            self._block.update(part)
            self._disk.write(self._handle, [part])
            self._room -= len(part)
            if not self._room:
                self._checksums.append(self._block.hexdigest())
                self._block.reset()
                self._room = BLOCK_BYTES
        self._nbytes += count
        return count

    def seal(self) -> Sealed | None:
        """Make the bytes durable. None for a file without any: nothing is left of it."""
        if not self._nbytes:
            self.discard()
            return None
        if self._room < BLOCK_BYTES:
            self._checksums.append(self._block.hexdigest())
        self._disk.sync(self._handle)
        handle, self._handle = self._handle, -1
        self._disk.close(handle)
        return Sealed(self._name, self._nbytes, tuple(self._checksums))

    def discard(self) -> None:
        """Nothing is left of it, and nothing more is written; done once, however often it is asked for."""
        handle, self._handle = self._handle, -1
        if handle >= 0:
            self._disk.close(handle)
            self._disk.remove(self._name)


class SealedFiles:
    """The data files that one rank writes in one save; several threads may write one each."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._lock = threading.Lock()
        self._sealed: dict[str, Sealed] = {}

    @contextmanager
    def writing(self, path: str | os.PathLike[str]) -> Iterator[IO[bytes]]:
        """A new file under the last name of `path`; sealed at the end, or gone if that was not reached."""
        name = os.path.basename(path)
        file = SealingFile(self._disk, name)
        try:
            stream = io.BufferedWriter(file, GATHERED_BYTES)
            yield stream
            stream.close()
            sealed = file.seal()
        except BaseException:
            file.discard()
            raise
        if sealed is not None:
            with self._lock:
                self._sealed[name] = sealed

    def sealed(self) -> dict[str, Sealed]:
        """All of them, by name, once their names are durable too."""
        self._disk.sync_dir("")
        return self._sealed
