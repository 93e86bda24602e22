"""Lies with good checksums: files changed by someone who knows the format and recomputes every sum."""

from collections.abc import Callable
from typing import Any

import msgspec
import xxhash

from everstep.codec import body
from everstep.log import frame
from everstep.store import document, names
from everstep.store.manifest import BaseEntry, Manifest
from tests.hostile.tiny import Files, W

Pieces = tuple[dict[str, Any], list[bytes]]
"""A record's head as plain JSON, and its blobs, each padded."""


def manifest_of(files: Files) -> tuple[str, Manifest]:
    path = max(name for name in files if names.MANIFEST.fullmatch(name.removeprefix(W)))
    return path, document.parse(files[path], "manifest", Manifest, name=path)


def with_manifest(files: Files, change: Callable[[dict[str, Any]], None]) -> Files:
    """The manifest as JSON, edited, with a good checksum; any value can be put in, of any type."""
    path, _ = manifest_of(files)
    return files | {path: redocument(files[path], "manifest", change)}


def redocument(data: bytes, kind: str, change: Callable[[dict[str, Any]], None]) -> bytes:
    plain = msgspec.json.decode(data)["document"]
    change(plain)
    return envelope(kind, msgspec.json.encode(plain))


def envelope(kind: str, text: bytes, version: int = 1) -> bytes:
    checksum = xxhash.xxh3_128_hexdigest(text)
    return b'{"everstep":"%s","format":%d,"checksum":"%s","document":%s}' % (
        kind.encode(), version, checksum.encode(), text,
    )  # fmt: skip


def with_records(files: Files, epoch: int, sequence: int, change: Callable[[int, Pieces], bytes | Pieces]) -> Files:
    """A segment with edited bodies: chains, checksums and the manifest's cut are made good again."""
    path = names.segment(0, epoch, sequence)
    data, out = files[path], [files[path][: frame.SEGMENT_BYTES]]
    chain, offset = frame.parse_head(out[0]).chain, frame.SEGMENT_BYTES
    told = chain
    while offset < len(data):
        found = frame.parse(data[offset : offset + 64], chain=told, room=len(data) - offset)
        whole = data[offset + 64 : offset + 64 + found.body_bytes]
        length = int.from_bytes(whole[:8], "little")
        start = body.padded(8 + length)
        edited = change(found.step, (msgspec.json.decode(whole[8 : 8 + length]), [whole[start:]]))
        packed, chain = frame.pack(
            found.kind, found.step, found.epoch, found.acknowledged, [body_bytes(edited)], chain=chain
        )
        out += [bytes(piece) for piece in packed]
        offset, told = offset + found.nbytes, found.chain
    segment = b"".join(out)

    def cut(plain: dict[str, Any]) -> None:
        for entry in plain["segments"]:
            if (entry["epoch"], entry["sequence"]) == (epoch, sequence) and entry["nbytes"] is not None:
                entry["nbytes"] = len(segment)

    return with_manifest(files | {path: segment}, cut)


def body_bytes(edited: bytes | Pieces) -> bytes:
    if isinstance(edited, bytes):
        return edited
    head, blobs = edited
    text = msgspec.json.encode(head)
    piece = len(text).to_bytes(8, "little") + text
    return piece + bytes(body.padded(len(piece)) - len(piece)) + b"".join(blobs)


def with_base(files: Files, step: int, epoch: int, change: Callable[[dict[str, Any]], None]) -> Files:
    """A base's index, edited as JSON; its checksum in the manifest is made good again."""
    path = names.base(0, step, epoch)
    text = redocument(files[path], "base", change)

    def told(plain: dict[str, Any]) -> None:
        for entry in plain["bases"]:
            if (entry["step"], entry["epoch"]) == (step, epoch):
                entry["checksum"] = xxhash.xxh3_128_hexdigest(text)

    return with_manifest(files | {path: text}, told)


def entry_of(files: Files, step: int) -> BaseEntry:
    return next(entry for entry in manifest_of(files)[1].bases if entry.step == step)
