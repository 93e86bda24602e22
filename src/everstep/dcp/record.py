"""The record of a checkpoint: what it holds, in which bytes of which file, and a checksum of every block of them.

It says all that `.metadata` says, as typed JSON that checks itself, so that a reader of ours never opens the pickle.
Its name is made of the checksum of the `.metadata` that it belongs to: replacing `.metadata` commits both at once.
"""

import contextlib
import itertools
import os
from collections.abc import Mapping
from typing import Annotated

import msgspec
import xxhash

from everstep.dcp import names
from everstep.dcp.coverage import fault
from everstep.errors import Damaged, EverstepError
from everstep.foreign import metadata
from everstep.foreign.metadata import Index, Sharded, Stretch
from everstep.foreign.tiling import some
from everstep.store import document
from everstep.store.disk import Disk
from everstep.types import Box

KIND = "dcp"
BLOCK_BYTES = 4 << 20
"""A checksum is of at most this much: what must be read to prove one byte, and how closely damage is located."""
BLOCK_BYTES_MAX = 64 << 20
LOOKS = 4

Count = Annotated[int, msgspec.Meta(ge=0, lt=1 << 62)]
Checksum = Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{32}\Z")]


class Sealed(msgspec.Struct, frozen=True, array_like=True):
    """A data file as it was written: its length, and the XXH3-128 of each of its blocks."""

    name: str
    nbytes: Count
    checksums: tuple[Checksum, ...]


class Place(msgspec.Struct, frozen=True, array_like=True):
    """One archive of torch.save in the data file of this number."""

    file: Count
    offset: Count
    nbytes: Count


class Entry(msgspec.Struct, frozen=True, array_like=True):
    """A tensor: its element type as torch names it, and its boxes with their places."""

    name: str
    dtype: str
    shape: tuple[Count, ...]
    chunks: tuple[tuple[Box, Place], ...]


class Record(msgspec.Struct, frozen=True):
    """`paths`: where each entry stood in the nested state dict, if the planner flattened one. `replaces`: data files of
    torch's own writer that this save made useless; they go once it is committed."""

    torch: str
    block_bytes: Annotated[int, msgspec.Meta(ge=1, le=BLOCK_BYTES_MAX)]
    files: tuple[Sealed, ...]
    tensors: tuple[Entry, ...]
    values: dict[str, Place]
    paths: dict[str, tuple[str | int, ...]] | None
    replaces: tuple[str, ...] = ()

    def index(self, folder: str) -> Index:
        """The same as readers of `.metadata` know it."""

        def stretch(place: Place) -> Stretch:
            return Stretch(os.path.join(folder, self.files[place.file].name), place.offset, place.nbytes)

        tensors = {
            entry.name: Sharded(entry.dtype, entry.shape, tuple((box, stretch(place)) for box, place in entry.chunks))
            for entry in self.tensors
        }
        return Index(tensors, {name: stretch(place) for name, place in self.values.items()}, self.paths or {})

    def holding(self, file: int, first: int, last: int) -> str:
        """The entries that have bytes of [first, last) of a file, as messages name them."""
        held = [(place, repr(entry.name)) for entry in self.tensors for _, place in entry.chunks]
        held += [(place, repr(name)) for name, place in self.values.items()]
        found = [(place.offset, name) for place, name in held if _meets(place, file, first, last)]
        return some(name for _, name in sorted(found)) or "nothing"


def load(disk: Disk, path: str) -> tuple[str, Record | None]:
    """What names the commit in a folder, and its record; None where another writer committed, and left no record.

    `path` is what messages call the folder. FileNotFoundError when nothing is committed.
    """
    for _ in range(LOOKS):
        name = names.record(document.load_bytes(disk, names.METADATA))
        with contextlib.suppress(FileNotFoundError):
            record = document.load(disk, name, KIND, Record)
            if wrong := _fault(record):
                raise Damaged(f"{path}/{name}: {wrong}. Copy it again.")
            return name, record
        others = [other for other in disk.names("") if names.RECORD.fullmatch(other)]
        if not others or _foreign(path):
            return name, None
    raise Damaged(  # a save that replaced both while we looked was seen at the next look
        f"{path}: {names.METADATA} is not the one that {some(others)} was written for: it is damaged, or another "
        f"program replaced it. The data files are not concerned: copy {names.METADATA} again; or, if it is right, "
        f"remove {some(others)}, and the checkpoint is read without its checksums."
    )


def used(index: Index) -> list[str]:
    """The names of the data files that have a part in it."""
    places = [*index.values.values(), *(place for one in index.tensors.values() for _, place in one.chunks)]
    return sorted({os.path.basename(place.path) for place in places})


def pack(record: Record) -> bytes:
    return document.pack(KIND, record)


def checksum(block: bytes | bytearray | memoryview) -> str:
    return xxhash.xxh3_128_hexdigest(block)


def lengths(disk: Disk, record: Record, path: str) -> None:
    """Damaged names every data file that is missing or has another length, and what it held."""
    wrong = []
    for at, sealed in enumerate(record.files):
        try:
            source = disk.source(sealed.name)
        except OSError as refused:
            what = "is missing" if isinstance(refused, FileNotFoundError) else f"cannot be read ({refused.strerror})"
        else:
            size = source.size
            source.close()
            if size == sealed.nbytes:
                continue
            what = f"has {size} bytes, {sealed.nbytes} were written"
        wrong.append(f"{sealed.name} {what} (it holds {record.holding(at, 0, sealed.nbytes)})")
    if wrong:
        raise Damaged(
            f"{path}: {'; '.join(wrong[:3])}{' ..' if len(wrong) > 3 else ''}. The other "
            f"{len(record.files) - len(wrong)} data files are there. Copy what is missing again, or use another "
            "checkpoint."
        )


def covered(index: Index, path: str) -> None:
    """Damaged names the tensor that has a hole or an overlap."""
    for name, sharded in index.tensors.items():
        if wrong := fault(name, sharded.shape, [box for box, _ in sharded.chunks]):
            raise Damaged(
                f"{path}: {wrong}. Nothing was loaded; other tensors are not concerned. Find the missing part, or use "
                "another checkpoint."
            )


def _foreign(path: str) -> bool:
    """Whether `.metadata` is another writer's, beside the record of a save before it, or of one that never ended."""
    try:
        return not any(names.PARTS.fullmatch(name) for name in used(metadata.read(path)))
    except EverstepError:
        return False


def _fault(record: Record) -> str | None:
    """Why a record cannot be right, or None. Nothing it says leads outside its own files."""
    known: Mapping[int, Sealed] = dict(enumerate(record.files))
    for sealed in record.files:
        if not names.PARTS.fullmatch(sealed.name):
            return f"{sealed.name[:80]!r} is no data file of a save"
        if len(sealed.checksums) != -(-sealed.nbytes // record.block_bytes):
            return f"{sealed.name} has {len(sealed.checksums)} checksums for {sealed.nbytes} bytes"
    if len({sealed.name for sealed in record.files}) != len(record.files):
        return "a data file is listed twice"
    if len({entry.name for entry in record.tensors} | record.values.keys()) != len(record.tensors) + len(record.values):
        return "two entries have one name"
    places = [place for entry in record.tensors for _, place in entry.chunks]
    for place in itertools.chain(places, record.values.values()):
        if place.file not in known or place.offset + place.nbytes > known[place.file].nbytes:
            return "an entry lies outside the data files"
    if not all((record.paths or {"": ("",)}).values()):
        return "an entry has no path"
    if not all(names.TORCHS.fullmatch(name) for name in record.replaces):
        return "it replaces files that are not torch's"
    return None


def _meets(place: Place, file: int, first: int, last: int) -> bool:
    return place.file == file and place.offset < last and first < place.offset + place.nbytes
