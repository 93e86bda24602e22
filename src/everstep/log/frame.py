"""Bytes of one record and of a segment's head. No files, no clocks: bytes in, values out.

A record (little-endian):

    offset  size  field
    0       4     "ESR1"
    4       4     kind: 1 update (follows from the step before), 2 rebase (only a base holds this step)
    8       8     body length L, 1 <= L
    16      8     step
    24      8     epoch of the writer
    32      8     acknowledged: newest durable step when this was written, signed, -1 for none
    40      8     XXH3-64 of the body
    48      8     reserved, zero
    56      8     chain: XXH3-64 of bytes 0..56, seeded with the previous chain
    64      L     body
    64+L    pad   zeros up to a multiple of 64

The body has its own checksum so that it can be computed away from the writer; the chain covers it through the head, so
a record cannot be dropped, repeated, moved or taken from another history.

The head of a segment:

    0       8     "EVERSEG1"
    8       4     format version, 1
    12      4     writer (rank)
    16      16    run id
    32      8     epoch
    40      8     sequence number within the epoch
    48      8     step before the first record, signed
    56      8     chain before the first record: what the previous segment ended with
    64      56    reserved, zero
    120     8     XXH3-64 of bytes 0..120; seeds the first record's chain
"""

import struct
from dataclasses import dataclass

import xxhash

from everstep.errors import UnknownFormat
from everstep.types import ALIGN, Bytes, padded

UPDATE, REBASE = 1, 2
MAGIC = b"ESR1"
FRAME = struct.Struct("<4sIQQQqQQQ")
SEGMENT_MAGIC = b"EVERSEG1"
SEGMENT_FORMAT = 1
SEGMENT = struct.Struct("<8sII16sQQqQ56xQ")
SEGMENT_BYTES = SEGMENT.size


class BadFrame(Exception):
    """These bytes are not the record that must stand here. Whether a crash or damage did it, the reader decides."""


@dataclass(frozen=True, slots=True)
class Frame:
    """A record's head."""

    kind: int
    body_bytes: int
    step: int
    epoch: int
    acknowledged: int
    checksum: int
    chain: int

    @property
    def nbytes(self) -> int:
        """Length of the whole record in the file."""
        return FRAME.size + padded(self.body_bytes)


@dataclass(frozen=True, slots=True)
class Head:
    """A segment's head."""

    rank: int
    run: bytes
    epoch: int
    sequence: int
    after_step: int
    before: int
    chain: int


def checksum(pieces: list[Bytes]) -> int:
    """The checksum of a body; it depends on nothing else, so that it can be computed ahead."""
    body = xxhash.xxh3_64()
    for piece in pieces:
        body.update(piece)
    return body.intdigest()


def pack(
    kind: int, step: int, epoch: int, acknowledged: int, pieces: list[Bytes], *, chain: int, ahead: int | None = None
) -> tuple[list[Bytes], int]:
    """The buffers to write for one record, and its chain, which seeds the next one. `ahead` is a known checksum."""
    length = sum(memoryview(piece).nbytes for piece in pieces)
    body = checksum(pieces) if ahead is None else ahead
    head = FRAME.pack(MAGIC, kind, length, step, epoch, acknowledged, body, 0, 0)[:56]
    link = xxhash.xxh3_64_intdigest(head, chain)
    return [head + struct.pack("<Q", link), *pieces, bytes(padded(length) - length)], link


def parse(data: Bytes, *, chain: int, room: int) -> Frame:
    """The record head in `data`, of which `room` bytes are left in the file including this head."""
    if len(data) < FRAME.size:
        raise BadFrame(f"{len(data)} bytes left, a record's head needs {FRAME.size}")
    magic, kind, length, step, epoch, acknowledged, checksum, reserved, link = FRAME.unpack_from(data)
    if magic != MAGIC:
        raise BadFrame("no record begins here")
    if xxhash.xxh3_64_intdigest(bytes(data[:56]), chain) != link:
        raise BadFrame(f"the record claiming step {step} fails its chain checksum")
    if kind not in (UPDATE, REBASE) or reserved:
        raise UnknownFormat(
            f"the record of step {step} is of kind {kind}, which this everstep does not know: upgrade everstep."
        )
    if length < 1 or FRAME.size + padded(length) > room:  # before anything is allocated
        raise BadFrame(f"the record claiming step {step} needs {length} bytes of body, {room - FRAME.size} are left")
    return Frame(kind, length, step, epoch, acknowledged, checksum, link)


def check_body(frame: Frame, body: Bytes) -> None:
    """Raise BadFrame unless `body`, with its padding, is what the head was written for."""
    view = memoryview(body)
    if xxhash.xxh3_64_intdigest(view[: frame.body_bytes]) != frame.checksum:
        raise BadFrame(f"the record of step {frame.step} fails its body checksum")
    if any(view[frame.body_bytes :]):
        raise BadFrame(f"the record of step {frame.step} has bytes in its padding")


def pack_head(rank: int, run: bytes, epoch: int, sequence: int, after_step: int, before: int) -> tuple[bytes, int]:
    """The bytes of a segment's head, and the chain that seeds its first record."""
    head = SEGMENT.pack(SEGMENT_MAGIC, SEGMENT_FORMAT, rank, run, epoch, sequence, after_step, before, 0)[:120]
    chain = xxhash.xxh3_64_intdigest(head)
    return head + struct.pack("<Q", chain), chain


def parse_head(data: Bytes) -> Head:
    if len(data) < SEGMENT_BYTES:
        raise BadFrame(f"{len(data)} bytes left, a segment's head needs {SEGMENT_BYTES}")
    magic, version, rank, run, epoch, sequence, after_step, before, chain = SEGMENT.unpack_from(data)
    if magic != SEGMENT_MAGIC:
        raise BadFrame("no segment begins here")
    if xxhash.xxh3_64_intdigest(bytes(data[:120])) != chain:  # first: a flipped bit is not a newer version
        raise BadFrame("the segment's head fails its checksum")
    if version != SEGMENT_FORMAT or any(data[64:120]):
        raise UnknownFormat(
            f"this segment is of format {version}, this everstep reads up to {SEGMENT_FORMAT}: upgrade everstep."
        )
    return Head(rank, run, epoch, sequence, after_step, before, chain)


def later_witness(data: Bytes, step: int, epoch: int) -> bool:
    """Whether some whole record in `data` says that `step` had been acknowledged when it was written.

    Then the bad bytes before it are damage: a crash cannot tear what had been synced. A record that merely stands
    there proves nothing, because sectors of one unsynced write may reach the disk in any order.
    """
    view, hashed = memoryview(data), 0
    for offset in range(0, len(view) - FRAME.size + 1, ALIGN):
        if view[offset : offset + 4] != MAGIC:
            continue
        _, kind, length, at, of, acknowledged, checksum, reserved, _ = FRAME.unpack_from(view, offset)
        body = view[offset + FRAME.size : offset + FRAME.size + length]
        if kind in (UPDATE, REBASE) and of == epoch and at > step and not reserved and len(body) == length:
            hashed += length
            if hashed > 2 * len(view):  # records do not overlap; heads that do were made to cost time, not by a crash
                return True
            if acknowledged >= step and xxhash.xxh3_64_intdigest(body) == checksum:
                return True
    return False
