"""The newest acknowledged step, and what else can be restored, noted beside the log after each acknowledgement.

Without it a log cannot tell a tail that was torn by a crash from one that was acknowledged and then damaged, and
writers that train together could not tell which steps all of them hold. It is written after the log is synced and is
not synced itself: after a power cut it may be older than the truth, never newer.

    offset    size  field
    0         8     "EVERACK1"
    8         8     epoch
    16        8     acknowledged step, signed
    24        8     XXH3-64 of bytes 0..24
    32        8     n: so many stretches of steps can be restored; the newest 62 at most, oldest first
    40        16 n  of each the first and the last step
    40+16n    8     XXH3-64 of bytes 32..40+16n
"""

import struct
from collections.abc import Sequence
from dataclasses import dataclass

import xxhash

from everstep.store import names
from everstep.store.disk import Disk
from everstep.types import Span

HEAD = struct.Struct("<8sQqQ")
MAGIC = b"EVERACK1"
SPANS_MAX = 62
BYTES_MAX = HEAD.size + 16 + 16 * SPANS_MAX


@dataclass(frozen=True, slots=True)
class Noted:
    """Where a stretch cannot be read, `spans` holds the acknowledged step alone."""

    step: int
    spans: tuple[Span, ...]


def pack(epoch: int, spans: Sequence[Span]) -> bytes:
    """What can be restored; the last step of all is the acknowledged one."""
    told = spans[-SPANS_MAX:]
    rest = struct.pack(f"<Q{2 * len(told)}Q", len(told), *(end for span in told for end in span))
    return _head(epoch, told[-1][1] if told else -1) + _summed(rest)


def parse(data: bytes, epoch: int) -> Noted | None:
    """None for bytes that a crash tore; a witness that cannot be read says nothing."""
    head = data[: HEAD.size]
    if len(head) != HEAD.size or head != _head(epoch, step := int(HEAD.unpack(head)[2])):
        return None
    alone = ((step, step),) if step >= 0 else ()
    return Noted(step, _spans(data[HEAD.size :]) or alone)


def load(disk: Disk, rank: int, epoch: int) -> Noted | None:
    try:
        source = disk.source(names.witness(rank, epoch))
    except OSError:  # none, or something else in its place
        return None
    try:
        return parse(source.read(0, min(source.size, BYTES_MAX)), epoch)
    except (OSError, EOFError):
        return None
    finally:
        source.close()


def epochs(disk: Disk, rank: int) -> list[int]:
    """Those of which there is one."""
    try:
        there = disk.names(names.writer(rank))
    except OSError:
        return []
    return [int(found[1]) for name in there if (found := names.WITNESS.fullmatch(name))]


def _spans(data: bytes) -> tuple[Span, ...]:
    count = int.from_bytes(data[:8], "little")
    if count > SPANS_MAX or len(data) < 16 + 16 * count or data[: 16 + 16 * count] != _summed(data[: 8 + 16 * count]):
        return ()
    ends = struct.unpack_from(f"<{2 * count}Q", data, 8)
    return tuple(zip(ends[::2], ends[1::2], strict=True))


def _head(epoch: int, step: int) -> bytes:
    return _summed(struct.pack("<8sQq", MAGIC, epoch, step))


def _summed(data: bytes) -> bytes:
    return data + struct.pack("<Q", xxhash.xxh3_64_intdigest(data))
