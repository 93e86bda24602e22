"""One archive of torch.save: the tree that it describes, and where the bytes of its tensors are."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import product

from everstep.errors import Damaged, Unsupported
from everstep.foreign import archive, pickles
from everstep.foreign.archive import Member
from everstep.foreign.files import File
from everstep.foreign.found import Part, Place, Stored
from everstep.foreign.inert import StorageRef, TensorRef
from everstep.layout import boxes
from everstep.types import DTYPE_BYTES, Box, whole

BOXES_MAX = 4096
EXPANDED_MAX = 1 << 18
"""Elements of a tensor that has more of them than its storage: expanding repeats some, and a file can say how often."""
SMALL_BYTES_MAX = 64


@dataclass(frozen=True, slots=True)
class Saved:
    """`tree` is inert; `pickle_bytes` is how long its description is."""

    path: str
    tree: object
    pickle_bytes: int
    members: Mapping[str, Member]

    def stored(self, ref: TensorRef) -> Stored:
        """Where a tensor's elements are. One that is not in row-major order is cut into boxes that are."""
        outer = _outer(ref.shape, ref.strides)
        count = math.prod(ref.shape)
        if not count:
            return Stored(ref.dtype, ref.shape, ((whole(ref.shape), self.place(ref.storage, 0, 0)),))
        if count > max(ref.storage.count, EXPANDED_MAX):
            raise Unsupported(
                f"{self.path}: a tensor of shape {list(ref.shape)} is a view of {ref.storage.count} elements. Save it "
                f"again with .contiguous()."
            )
        if (rows := math.prod(ref.shape[:outer])) > BOXES_MAX:
            raise Unsupported(
                f"{self.path}: a tensor of shape {list(ref.shape)} is stored with strides {list(ref.strides)}, in "
                f"{rows} pieces. Save it again with .contiguous()."
            )
        parts: list[Part] = []
        for index in product(*(range(n) for n in ref.shape[:outer])):
            start = ref.offset + sum(i * step for i, step in zip(index, ref.strides, strict=False))
            low = (*index, *(0 for _ in ref.shape[outer:]))
            high = (*(i + 1 for i in index), *ref.shape[outer:])
            parts.append((Box(low, high), self.place(ref.storage, start, count // rows)))
        return Stored(ref.dtype, ref.shape, tuple(parts))

    def place(self, storage: StorageRef, start: int, count: int) -> Place:
        """The bytes of `count` elements from element `start` of a storage."""
        member = self.members.get(f"data/{storage.key}")
        if member is None:
            raise Damaged(f"{self.path}: the bytes of storage {storage.key!r} are missing. Copy the file again.")
        width = DTYPE_BYTES[storage.dtype]
        if not 0 <= start <= start + count <= storage.count or storage.count * width > member.nbytes:
            raise Damaged(
                f"{self.path}: {member.name!r} has {member.nbytes} bytes, elements {start} to {start + count} of "
                f"{storage.count} are expected in it. Copy the file again."
            )
        covers = (member.offset, member.nbytes)
        return Place(self.path, member.offset + start * width, count * width, member.crc32, covers)


def load(path: str) -> Saved:
    """A file that torch.save wrote."""
    with File(path) as file:
        return within(file, 0, file.size)


def within(file: File, start: int, nbytes: int) -> Saved:
    """An archive that is a part of a file."""
    if nbytes < 4 or file.read(start, 4) != b"PK\x03\x04":
        raise Unsupported(
            f"{file.path}: no archive of torch.save begins at byte {start}. Files of torch before 1.6 and tar files "
            f"are not read: load and save it again with a newer torch."
        )
    members = archive.members(file, start, nbytes)
    if "data.pkl" not in members:
        raise Damaged(f"{file.path}: the archive at byte {start} holds no data.pkl: torch.save did not write it.")
    order = members.get("byteorder")
    if order is not None and (order.nbytes > SMALL_BYTES_MAX or archive.content(file, order) != b"little"):
        raise Unsupported(f"{file.path}: written by a big-endian machine.")
    described = members["data.pkl"]
    if described.nbytes > pickles.PICKLE_BYTES_MAX:
        raise Unsupported(f"{file.path}: a description of {described.nbytes} bytes; see PICKLE_BYTES_MAX.")
    tree = pickles.loads(archive.content(file, described), file.path, described.offset)
    return Saved(file.path, tree, described.nbytes, members)


def part_of(stored: Stored, start: int, shape: tuple[int, ...], first: int, count: int) -> list[Part]:
    """The boxes of elements [first, first + count) of a tensor of `shape`, which lie from `start` on in a flat one."""
    _, place = stored.parts[0]
    held, width = math.prod(stored.shape), DTYPE_BYTES[stored.dtype]
    if len(stored.parts) != 1 or not 0 <= start <= start + count <= held:
        raise Damaged(f"{place.path}: elements {start} to {start + count} are expected in a flat tensor of {held}.")
    if not 0 <= first <= first + count <= math.prod(shape):
        raise Damaged(f"{place.path}: elements {first} to {first + count} do not fit into {list(shape)}.")
    parts, at = [], place.offset + start * width
    for box in boxes.flat(shape, first, first + count):
        nbytes = boxes.volume(box) * width
        parts.append((box, replace(place, offset=at, nbytes=nbytes)))
        at += nbytes
    return parts


def _outer(shape: tuple[int, ...], strides: tuple[int, ...]) -> int:
    """How many leading axes must be walked so that what is left is in one piece, in order."""
    step = 1
    for axis in range(len(shape) - 1, -1, -1):
        if shape[axis] != 1 and strides[axis] != step:
            return axis + 1
        step *= shape[axis]
    return 0
