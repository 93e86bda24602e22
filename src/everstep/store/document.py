"""Small JSON files that check themselves: a typed document and, around it, its kind, format version and checksum.

{"everstep":"manifest","format":1,"checksum":"<xxh3-128 of the document's bytes>","document":{...}}
"""

import re
from typing import TypeVar

import msgspec
import xxhash

from everstep.errors import Damaged, UnknownFormat
from everstep.frugal import refuse_bomb
from everstep.store.disk import Files

FORMAT = 1
DOCUMENT_BYTES_MAX = 256 << 20

T = TypeVar("T")


class Envelope(msgspec.Struct):
    everstep: str
    format: int
    checksum: str
    document: msgspec.Raw


class Label(msgspec.Struct):
    everstep: str
    format: int


def pack(kind: str, document: msgspec.Struct) -> bytes:
    """The bytes of a document, the same for the same content."""
    body = msgspec.json.encode(document)
    return msgspec.json.encode(Envelope(kind, FORMAT, xxhash.xxh3_128_hexdigest(body), msgspec.Raw(body)))


def parse(data: bytes, kind: str, shape: type[T], *, name: str) -> T:
    """The document in `data`. `name` is what messages call the file."""
    refuse_bomb(data, name=name)
    try:
        label = msgspec.json.decode(data, type=Label)
        if label.everstep == kind and label.format > FORMAT:
            raise UnknownFormat(
                f"{name}: is of format {label.format}, this everstep reads up to {FORMAT}. Nothing is lost: upgrade "
                "everstep."
            )
        envelope = msgspec.json.decode(data, type=Envelope)
        if envelope.everstep != kind or envelope.format < 1:
            raise Damaged(f"{name}: is a {envelope.everstep[:40]!r}, not a {kind}.")
        body = bytes(envelope.document)
        if xxhash.xxh3_128_hexdigest(body) != envelope.checksum or len(data) != len(body) + _frame_bytes(envelope):
            raise Damaged(f"{name}: this {kind} fails its checksum.")
        return msgspec.json.decode(body, type=shape)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as bad:
        raise Damaged(f"{name}: is not a readable {kind} ({_plain(bad)}).") from bad


def load(disk: Files, path: str, kind: str, shape: type[T]) -> T:
    """Read and check the document at `path`; FileNotFoundError when there is none, Damaged when it cannot be read."""
    return parse(load_bytes(disk, path), kind, shape, name=path)


def load_bytes(disk: Files, path: str) -> bytes:
    try:
        source = disk.source(path)
    except FileNotFoundError:
        raise
    except OSError as refused:  # a link, a pipe, a directory in the file's place, or a disk that cannot read
        raise Damaged(f"{path}: cannot be read ({refused.strerror}).") from refused
    try:
        if source.size > DOCUMENT_BYTES_MAX:
            raise Damaged(
                f"{path}: is {source.size} bytes long; no such file of ours is larger than {DOCUMENT_BYTES_MAX}."
            )
        return source.read(0, source.size)
    except EOFError as short:
        raise Damaged(f"{path}: changed while it was read.") from short
    except OSError as refused:
        raise Damaged(f"{path}: cannot be read ({refused.strerror}).") from refused
    finally:
        source.close()


def _frame_bytes(envelope: Envelope) -> int:
    """Length of everything around the document, so that nothing can hide outside the checksum."""
    return len(msgspec.json.encode(Envelope(envelope.everstep, envelope.format, envelope.checksum, msgspec.Raw(b""))))


def _plain(bad: Exception) -> str:
    return re.sub(r"[^\x20-\x7e]", "?", str(bad))[:200]
