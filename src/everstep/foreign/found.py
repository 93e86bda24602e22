"""What a reader finds: logical tensors by name, the files and bytes that hold their boxes, and plain values.

Names are the same for every system: parameters and buffers are `model/<fqn>`, the optimizer's tensors are
`optimizer/<state key>/<fqn>`, tensors that are neither are `other/<path>`. A box's bytes are its elements in row-major
order, in one piece. Nothing is read but descriptions until somebody reads a place.

`check` proves that nothing is missing and `verify` that no byte has changed, as far as the format holds checksums.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby

from everstep.errors import Damaged
from everstep.foreign.files import BLOCK_BYTES, File
from everstep.foreign.tiling import hole, overlap, some
from everstep.types import Box, Tensor

Plain = None | bool | int | float | str | list["Plain"] | dict[str, "Plain"]
Part = tuple[Box, "Place"]


@dataclass(frozen=True, slots=True)
class Place:
    """Bytes of a file. `crc32`, where there is one, is of the `covers` (start, nbytes) of the same file around them."""

    path: str
    offset: int
    nbytes: int
    crc32: int | None = None
    covers: tuple[int, int] = (0, 0)


@dataclass(frozen=True, slots=True)
class Stored:
    """A tensor before it has a name: which place holds which of its boxes."""

    dtype: str
    shape: tuple[int, ...]
    parts: tuple[Part, ...]


@dataclass(frozen=True, slots=True)
class Found:
    """One box of one logical tensor, and where it is."""

    tensor: Tensor
    place: Place


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A checkpoint as it lies on the disk.

    `aliases` gives the other names of tensors that are held once; `notes` says what the format does not hold or what
    was decided in reading it; `unknown` lists objects of classes we do not know, which were neither executed nor kept.
    `buffers` lists the names that are no parameters, where the format tells the two apart.
    """

    kind: str
    path: str
    tensors: tuple[Found, ...]
    objects: Mapping[str, Plain] = field(default_factory=dict)
    aliases: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()
    buffers: frozenset[str] = frozenset()


def named(name: str, stored: Stored) -> list[Found]:
    """Its boxes under a logical name."""
    return [Found(Tensor(name, stored.dtype, stored.shape, box, place.nbytes), place) for box, place in stored.parts]


def check(checkpoint: Checkpoint) -> None:
    """Every tensor is there, whole and once, in files that are long enough. Damaged names every part that is not."""
    sizes: dict[str, int] = {}
    groups: dict[str, list[Found]] = defaultdict(list)
    for found in checkpoint.tensors:
        groups[found.tensor.name].append(found)
        _lies_in_its_file(found, sizes)
    for name, parts in groups.items():
        first = parts[0].tensor
        if any((part.tensor.dtype, part.tensor.shape) != (first.dtype, first.shape) for part in parts):
            raise Damaged(f"{checkpoint.path}: the parts of {name!r} differ in element type or shape.")
        _covers(checkpoint.path, name, first.shape, _without_replicas(parts))
    for alias, name in checkpoint.aliases.items():
        if name not in groups:
            raise Damaged(f"{checkpoint.path}: {alias!r} is another name of {name!r}, which is missing.")


def verify(checkpoint: Checkpoint, done: Callable[[int], None] = lambda _n: None) -> int:
    """Read everything that has a checksum and compare. How many bytes were proved; Damaged names what was not.

    `done` hears of every stretch that was read.
    """
    wanted: dict[tuple[str, int, int, int], str] = {}
    for found in checkpoint.tensors:
        if found.place.crc32 is not None:
            wanted.setdefault((found.place.path, *found.place.covers, found.place.crc32), found.tensor.name)
    proved, bad = 0, []
    for path, ranges in groupby(sorted(wanted), key=lambda key: key[0]):
        with File(path) as file:
            for key in ranges:
                _, start, nbytes, crc = key
                done(nbytes)
                if file.crc32(start, nbytes) == crc:
                    proved += nbytes
                else:
                    bad.append(f"{wanted[key]!r} ({path}, bytes {start} to {start + nbytes})")
    if bad:
        raise Damaged(
            f"{checkpoint.path}: {some(bad)} fail their checksums; the other {len(wanted) - len(bad)} parts are "
            f"intact. Copy these files again, or from a replica."
        )
    return proved


def _lies_in_its_file(found: Found, sizes: dict[str, int]) -> None:
    tensor, place = found.tensor, found.place
    if fault := tensor.fault():
        raise Damaged(f"{place.path}: {fault}.")
    if place.path not in sizes:
        with File(place.path) as file:
            sizes[place.path] = file.size
    if place.offset < 0 or place.offset + place.nbytes > sizes[place.path] or place.nbytes != tensor.nbytes:
        raise Damaged(
            f"{place.path}: {tensor.name!r} needs bytes {place.offset} to {place.offset + place.nbytes}, the file has "
            f"{sizes[place.path]}. It was cut short; copy it again."
        )


def _without_replicas(parts: Sequence[Found]) -> list[Box]:
    """The boxes, those that are held several times once, if all holders agree on every byte."""
    held: dict[Box, Found] = {}
    for part in parts:
        other = held.setdefault(part.tensor.box, part)
        if other is not part and not _equal(other.place, part.place):
            raise Damaged(
                f"{part.place.path}: {part.tensor.name!r} is held twice and differs from {other.place.path}; one of "
                f"the two is of another step."
            )
    return list(held)


def _equal(one: Place, two: Place) -> bool:
    if (one.path, one.offset, one.nbytes) == (two.path, two.offset, two.nbytes):
        return True
    with File(one.path) as left, File(two.path) as right:
        return one.nbytes == two.nbytes and all(
            left.read(one.offset + at, count) == right.read(two.offset + at, count)
            for at in range(0, one.nbytes, BLOCK_BYTES)
            if (count := min(BLOCK_BYTES, one.nbytes - at))
        )


def _covers(path: str, name: str, shape: tuple[int, ...], held: Sequence[Box]) -> None:
    if pair := overlap(held):
        raise Damaged(f"{path}: the parts {pair} of {name!r} overlap.")
    count, where = hole(shape, held)
    if count:
        raise Damaged(
            f"{path}: {count} of {math.prod(shape)} elements of {name!r} are missing{where and f': {where}'}. Other "
            f"tensors are not concerned; find the missing file, or use another checkpoint."
        )
