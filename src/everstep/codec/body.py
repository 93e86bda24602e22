"""The body of a record: a JSON head and the raw bytes it names.

offset  size  field
0       8     length H of the head
8       H     head, JSON
..      pad   zeros up to a multiple of 64
then each blob in the order of the head's table, each padded to a multiple of 64
"""

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from everstep.errors import Damaged
from everstep.frugal import refuse_bomb
from everstep.types import Bytes, Tensor, padded

LENGTH = struct.Struct("<Q")


class Update(msgspec.Struct, frozen=True):
    """One call of an optimizer's step.

    `groups`: hyper-parameters of every group as the optimizer used them, None when they are as last said.
    `scale`: what a fused optimizer divides the gradients by (GradScaler). `skipped`: the optimizer changed nothing.
    `rng`: the step drew random numbers; the generators' states before it are in the blobs.
    """

    optimizer: str
    groups: list[Any] | None
    scale: float | None = None
    skipped: bool = False
    rng: Any = None


class Share(msgspec.Struct, frozen=True, array_like=True):
    """What of a record this rank writes, where others hold the same: which blobs, and the digests of what it writes."""

    blobs: tuple[int, ...]
    parameters: str
    state: str | None
    before: tuple[str, str] | None


class Head(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a record says. Blobs of update k are named gradient/k/<parameter>; of context, context/<item>/...

    `groups`: hyper-parameters as they are at the end of the step (a scheduler moved them), if not as last said.
    `parameters`, `state`: digests of what the step left; empty or None where they were not taken.
    `before`: the same two of the step before. A device digests while it trains, so its digests come one step late.
    `share` is for memory only: what becomes of the record on its way to the disk.
    """

    updates: tuple[Update, ...]
    groups: dict[str, list[Any]]
    context: dict[str, Any]
    parameters: str
    state: str | None
    blobs: tuple[Tensor, ...]
    before: tuple[str, str] | None = None
    share: Share | None = None


@dataclass(frozen=True, slots=True)
class Body:
    head: Head
    blobs: dict[str, tuple[Tensor, memoryview]]


def head_piece(head: Head) -> bytes:
    """The first piece of a body; its blobs follow, each padded."""
    text = msgspec.json.encode(head)
    return b"".join((LENGTH.pack(len(text)), text, bytes(padded(LENGTH.size + len(text)) - LENGTH.size - len(text))))


def padding(blob: Bytes) -> bytes:
    count = memoryview(blob).nbytes
    return bytes(padded(count) - count)


def aligned(blobs: Iterable[tuple[Tensor, bytes]]) -> list[Bytes]:
    """The blobs' bytes, each padded as a body wants it."""
    return [piece for _, data in blobs for piece in (data, padding(data))]


def shared(pieces: Sequence[memoryview], *, name: str) -> list[Bytes]:
    """The pieces of a body as they go to the disk: of what several ranks hold alike, this one's share."""
    if bytes(pieces[0]).find(b'"share":') < 0:  # most often; a name in the context proves nothing yet
        return list(pieces)
    found = parse_pieces(pieces, name=name)
    if (share := found.head.share) is None:
        return list(pieces)
    kept = [found.head.blobs[at] for at in share.blobs]
    head = msgspec.structs.replace(
        found.head, blobs=tuple(kept), parameters=share.parameters, state=share.state, before=share.before, share=None
    )
    data = [found.blobs[blob.name][1] for blob in kept]
    return [head_piece(head), *(piece for blob in data for piece in (blob, padding(blob)))]


def parse(data: memoryview, *, name: str) -> Body:
    """The head and views of the blobs. Every length is checked against `data` before it is used."""
    if len(data) < LENGTH.size:
        raise Damaged(f"{name}: the record's head cannot be read (it is {len(data)} bytes long).")
    length = min(padded(LENGTH.size + LENGTH.unpack_from(data)[0]), len(data))
    return parse_pieces([data[:length], data[length:]], name=name)


def parse_pieces(pieces: Sequence[memoryview], *, name: str) -> Body:
    """A body that lies in several places: its head first, and no blob across two of them."""
    head = parse_head(pieces[0], name=name)
    rest, at = [piece for piece in pieces[1:] if len(piece)], 0
    blobs: dict[str, tuple[Tensor, memoryview]] = {}
    for blob in head.blobs:
        if fault := blob.fault():
            raise Damaged(f"{name}: {fault}.")
        if rest and at == padded(len(rest[0])) and blob.nbytes:
            del rest[0]
            at = 0
        if blob.name in blobs or at + blob.nbytes > (len(rest[0]) if rest else 0):
            raise Damaged(f"{name}: the table of tensors does not fit the record.")
        blobs[blob.name] = (blob, rest[0][at : at + blob.nbytes] if rest else memoryview(b""))
        at += padded(blob.nbytes)
    if len(rest) > 1 or padded(len(rest[0]) if rest else 0) != padded(at):
        raise Damaged(f"{name}: the record is longer than its table of tensors says.")
    return Body(head, blobs)


def parse_head(data: memoryview, *, name: str) -> Head:
    """Only the head, for looking at a record."""
    try:
        (length,) = LENGTH.unpack_from(data)
        if length > len(data) - LENGTH.size:
            raise Damaged(f"{name}: a head of {length} bytes does not fit a record of {len(data)}.")
        text = bytes(data[LENGTH.size : LENGTH.size + length])
        refuse_bomb(text, name=name)
        return msgspec.json.decode(text, type=Head)
    except (struct.error, msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as bad:
        raise Damaged(f"{name}: the record's head cannot be read ({type(bad).__name__}).") from bad
