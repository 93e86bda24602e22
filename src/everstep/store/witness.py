"""The newest acknowledged step, noted beside the log after each acknowledgement.

Without it a log cannot tell a tail that was torn by a crash from one that was acknowledged and then damaged. It is
written after the log is synced and is not synced itself: after a power cut it may be older than the truth, never newer.

    offset  size  field
    0       8     "EVERACK1"
    8       8     epoch
    16      8     acknowledged step, signed
    24      8     XXH3-64 of bytes 0..24
"""

import struct

import xxhash

from everstep.store import names
from everstep.store.disk import Disk

LAYOUT = struct.Struct("<8sQqQ")
MAGIC = b"EVERACK1"


def pack(epoch: int, step: int) -> bytes:
    head = struct.pack("<8sQq", MAGIC, epoch, step)
    return head + struct.pack("<Q", xxhash.xxh3_64_intdigest(head))


def parse(data: bytes, epoch: int) -> int | None:
    """The step, or None for bytes that a crash tore; a witness that cannot be read says nothing."""
    if len(data) != LAYOUT.size or data != pack(epoch, LAYOUT.unpack(data)[2]):
        return None
    return int(LAYOUT.unpack(data)[2])


def load(disk: Disk, rank: int, epoch: int) -> int | None:
    try:
        source = disk.source(names.witness(rank, epoch))
    except OSError:  # none, or something else in its place
        return None
    try:
        return parse(source.read(0, LAYOUT.size), epoch) if source.size == LAYOUT.size else None
    except (OSError, EOFError):
        return None
    finally:
        source.close()
