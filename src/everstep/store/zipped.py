"""The bytes of a zip archive that compresses nothing, piece by piece, as torch's readers want it: members aligned.

What is handed on cannot be changed any more, so sizes and checksums follow each member's bytes, and one pass over them
is enough. Pure: bytes in and out.
"""

import struct
import zipfile
from collections.abc import Iterable, Iterator

from everstep.types import ALIGN, Bytes

BLOCK_BYTES = 32 << 20
HEADER_BYTES = 30
"""Of a member, before its name."""
WIDE_BYTES = 20
"""The field of 64-bit sizes. It is always there, so that there is one form only."""
FIRST_DAY = (1980, 1, 1, 0, 0, 0)
PADDING = b"FB"
"""The extra field that torch's own writer aligns with."""


def zipped(members: Iterable[tuple[str, Bytes]]) -> Iterator[Bytes]:
    """The archive of these members; their bytes are passed on, not copied."""
    sink = _Sink()
    with zipfile.ZipFile(sink, "w", zipfile.ZIP_STORED, allowZip64=True) as archive:  # type: ignore[call-overload]
        for name, held in members:
            entry, view = zipfile.ZipInfo(name, FIRST_DAY), memoryview(held)
            start = sink.tell() + HEADER_BYTES + len(name.encode()) + WIDE_BYTES + 4
            entry.extra = PADDING + struct.pack("<H", -start % ALIGN) + bytes(-start % ALIGN)
            with archive.open(entry, "w", force_zip64=True) as member:
                yield from sink.drain()
                for at in range(0, len(view), BLOCK_BYTES):
                    member.write(view[at : at + BLOCK_BYTES])
                    yield from sink.drain()
    yield from sink.drain()


class _Sink:
    """What the zip writer writes into: it counts, and hands on what it was given."""

    def __init__(self) -> None:
        self._held: list[Bytes] = []
        self._at = 0

    def write(self, piece: Bytes) -> int:
        self._held.append(piece)
        self._at += len(piece)
        return len(piece)

    def tell(self) -> int:
        return self._at

    def flush(self) -> None:
        """Nothing waits here."""

    def seekable(self) -> bool:
        return False

    def drain(self) -> Iterator[Bytes]:
        held, self._held = self._held, []
        yield from held
