"""Checkpoints that torch's own writer left: no record, so only what the files say of each other can be compared."""

import os
from collections.abc import Iterable
from typing import Protocol

from everstep.dcp import names
from everstep.dcp.record import used
from everstep.errors import Damaged
from everstep.foreign import archive, metadata
from everstep.foreign.files import File
from everstep.foreign.metadata import Index

BARE = (
    "written by torch's own writer: .metadata has no checksum, and only the CRC-32 inside each archive proves its "
    "bytes. Save with everstep.dcp.Writer for a checkpoint that is proved as a whole."
)


class Located(Protocol):
    @property
    def relative_path(self) -> str: ...
    @property
    def offset(self) -> int: ...
    @property
    def length(self) -> int: ...


def index(path: str) -> Index:
    """What `.metadata` says, read without executing it. Damaged when a save of ours made it and its record is gone."""
    found = metadata.read(path)
    if ours := [name for name in used(found) if names.PARTS.fullmatch(name)]:
        raise Damaged(
            f"{path}: everstep-*.json is missing, the record of this save; {ours[0]} cannot be "
            "proved without it. Copy the checkpoint again, that file included."
        )
    return found


def prove(path: str, items: Iterable[tuple[str, Located]]) -> list[str]:
    """Compare each archive with the CRC-32s in it. What was and what could not be proved, as notes."""
    proved = bare = 0
    for name, place in items:
        with File(os.path.join(path, place.relative_path)) as file:
            if place.length < 4 or file.read(place.offset, 4) != b"PK\x03\x04":
                bare += place.length
                continue
            try:
                for member in archive.members(file, place.offset, place.length).values():
                    archive.verify(file, member)
                    if member.crc32 is None:
                        bare += member.nbytes
                    else:
                        proved += member.nbytes
            except Damaged as damaged:
                raise Damaged(f"{name!r}: {damaged}") from damaged
    return [BARE, f"{proved} bytes agree with their CRC-32; {bare} bytes have no checksum and were taken as they are."]
