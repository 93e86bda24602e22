"""A data file that hands out no byte before the block around it has been compared with its record."""

import io
import os
from typing import Any

from everstep.dcp.record import Record, checksum
from everstep.errors import Damaged
from everstep.store.disk import Source

GATHERED_BYTES = 64 << 10
"""Shorter reads are served from what was handed out already: opening one archive takes dozens of a few bytes each."""


class ProvingFile(io.RawIOBase):
    """A file open for reading. `path` is what messages call it."""

    def __init__(self, source: Source, record: Record, number: int, path: str) -> None:
        super().__init__()
        self._source = source
        self._record = record
        self._number = number
        self._path = path
        self._size = record.files[number].nbytes
        self._at = 0
        self._held: tuple[int, bytearray] = (-1, bytearray())

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        self._at = offset + {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._size}[whence]
        return self._at

    def tell(self) -> int:
        return self._at

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def readinto(self, target: Any) -> int:
        """Fill as much of `target` as the file has. Whole blocks are read into it and proved there, without a copy."""
        view = memoryview(target).cast("B")[: max(0, self._size - self._at)]
        count = len(view)
        while view:
            number, inside = divmod(self._at, self._record.block_bytes)
            length = self._length(number)
            if not inside and len(view) >= length:
                part = view[:length]
                self._prove(number, part)
            else:
                part = view[: length - inside]
                part[:] = memoryview(self._block(number, length))[inside : inside + len(part)]
            self._at += len(part)
            view = view[len(part) :]
        return count

    def _length(self, number: int) -> int:
        return min(self._record.block_bytes, self._size - number * self._record.block_bytes)

    def _block(self, number: int, length: int) -> bytearray:
        """A block of which only a part is wanted; kept, as what is wanted next is beside it as a rule."""
        if self._held[0] != number:
            block = bytearray(length)
            self._prove(number, memoryview(block))
            self._held = (number, block)
        return self._held[1]

    def _prove(self, number: int, target: memoryview) -> None:
        first = number * self._record.block_bytes
        last = first + len(target)
        try:
            self._source.read_into(first, target)
        except (OSError, EOFError) as failed:
            raise self._damaged(first, last, f"cannot be read ({failed})") from failed
        if checksum(target) != self._record.files[self._number].checksums[number]:
            raise self._damaged(first, last, "fail their checksum")

    def _damaged(self, first: int, last: int, what: str) -> Damaged:
        held = self._record.holding(self._number, first, last)
        return Damaged(
            f"{self._path}: bytes {first} to {last} {what}; they hold {held}. "
            "Every other block is not concerned. Copy this file again, or use another checkpoint."
        )
