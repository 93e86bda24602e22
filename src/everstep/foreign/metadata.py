"""The `.metadata` of torch.distributed.checkpoint: a bare pickle that says which file holds which box of which tensor.

It has no checksum of its own, so everything it says is compared with what the data files say of themselves.
"""

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise

from everstep.errors import Damaged, Unsupported
from everstep.foreign import pickles
from everstep.foreign.files import File, beside
from everstep.foreign.inert import ElementType, Record
from everstep.foreign.known import size
from everstep.types import Box

NAME = ".metadata"
DEPTH_MAX = 64
Path = tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class Stretch:
    """A part of a data file that is one archive."""

    path: str
    offset: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class Sharded:
    """A tensor: its chunks, each in a stretch."""

    dtype: str
    shape: tuple[int, ...]
    chunks: tuple[tuple[Box, Stretch], ...]


@dataclass(frozen=True, slots=True)
class Index:
    """What `.metadata` says. `paths` gives an entry's keys in the nested state dict, where the writer kept them."""

    tensors: Mapping[str, Sharded]
    values: Mapping[str, Stretch]
    paths: Mapping[str, Path]


def read(folder: str) -> Index:
    where = os.path.join(folder, NAME)
    with File(where) as file:
        if file.size > pickles.PICKLE_BYTES_MAX:
            raise Unsupported(f"{where}: {file.size} bytes; at most {pickles.PICKLE_BYTES_MAX} are read.")
        top = pickles.loads(file.read(0, file.size), where)
    try:
        return _index(folder, where, _fields(top, "Metadata"))
    except (ValueError, KeyError, TypeError) as wrong:
        raise Damaged(
            f"{where}: does not describe a checkpoint ({wrong}). The data files are not concerned; copy {NAME} again."
        ) from wrong


def _index(folder: str, where: str, fields: Mapping[str, object]) -> Index:
    stretches: dict[tuple[str, tuple[int, ...] | None], Stretch] = {}
    for index, info in _dict(fields["storage_data"]).items():
        said = _fields(index, "MetadataIndex")
        offset = said.get("offset")
        key = (_text(said["fqn"]), None if offset is None else size(offset))
        if key in stretches:
            raise ValueError(f"{key[0]!r} at {key[1]} has two places")
        stretches[key] = _stretch(folder, where, _fields(info, "_StorageInfo"))
    tensors, values = {}, {}
    for said_name, entry in _dict(fields["state_dict_metadata"]).items():
        name = _text(said_name)
        if isinstance(entry, Record) and entry.kind == "BytesStorageMetadata":
            if (name, None) not in stretches:
                raise Damaged(f"{where}: the place of the value {name!r} is missing. Copy {NAME} again.")
            values[name] = stretches.pop((name, None))
        else:
            tensors[name] = _sharded(where, name, _fields(entry, "TensorStorageMetadata"), stretches)
    if stretches:
        name, offset = next(iter(stretches))
        raise Damaged(
            f"{where}: a part of {name!r} at {offset} has a place but is not listed as one of its chunks, as are "
            f"{len(stretches) - 1} more. The list is damaged; copy {NAME} again."
        )
    _disjoint(where, [*values.values(), *(stretch for one in tensors.values() for _, stretch in one.chunks)])
    return Index(tensors, values, _paths(fields["planner_data"], (*tensors, *values)))


def _sharded(
    where: str, name: str, fields: Mapping[str, object], stretches: dict[tuple[str, tuple[int, ...] | None], Stretch]
) -> Sharded:
    shape: tuple[int, ...] = size(fields["size"])
    chunks = []
    listed = fields["chunks"]
    for chunk in listed if isinstance(listed, list) else ():
        said = _fields(chunk, "ChunkStorageMetadata")
        low, extent = size(said["offsets"]), size(said["sizes"])
        if (name, low) not in stretches:
            raise Damaged(f"{where}: the place of {name!r} at {list(low)} is missing. Copy {NAME} again.")
        if len(low) != len(extent):
            raise ValueError(f"a chunk of {name!r} differs from itself in rank")
        high = tuple(lo + n for lo, n in zip(low, extent, strict=True))
        chunks.append((Box(low, high), stretches.pop((name, low))))
    if not chunks and 0 not in shape:
        raise Damaged(f"{where}: no chunk of {name!r}, of shape {list(shape)}, is listed. Copy {NAME} again.")
    return Sharded(_dtype(name, _fields(fields["properties"], "TensorProperties")), shape, tuple(chunks))


def _stretch(folder: str, where: str, fields: Mapping[str, object]) -> Stretch:
    offset, length = fields["offset"], fields["length"]
    if fields.get("transform_descriptors"):
        raise Unsupported(f"{where}: data files are compressed or encrypted by a transform. Save without transforms.")
    if type(offset) is not int or type(length) is not int or offset < 0 or length < 0:
        raise ValueError("a place that is no range")
    return Stretch(beside(folder, fields["relative_path"], where), offset, length)


def _disjoint(where: str, stretches: list[Stretch]) -> None:
    ordered = sorted(stretches, key=lambda one: (one.path, one.offset))
    for one, two in pairwise(ordered):
        if one.path == two.path and one.offset + one.nbytes > two.offset:
            raise Damaged(f"{where}: two entries claim byte {two.offset} of {two.path}. Copy {NAME} again.")


def _dtype(name: str, fields: Mapping[str, object]) -> str:
    """As a field, or as the first of the tuple that its class writes."""
    state = fields.get("state")
    dtype = state[0] if isinstance(state, tuple) and state else fields.get("dtype")
    if not isinstance(dtype, ElementType):
        raise Unsupported(f"{name!r} has an element type that is not known here.")
    return dtype.name


def _paths(planner: object, names: Iterable[str]) -> dict[str, Path]:
    """An entry's name is its path with dots between: said twice, so that a changed letter is seen."""
    found: dict[str, Path] = {}
    for name, path in planner.items() if isinstance(planner, dict) else ():
        if not isinstance(path, tuple) or not 0 < len(path) <= DEPTH_MAX:
            raise ValueError("a path that is none")
        if not all(isinstance(key, str | int) for key in path) or ".".join(map(str, path)) != name:
            raise ValueError("a path that does not lead to its entry")
        found[_text(name)] = path
    if found and (lost := [name for name in names if name not in found]):
        raise ValueError(f"no path leads to {lost[0]!r}")
    return found


def _fields(value: object, kind: str) -> Mapping[str, object]:
    if not isinstance(value, Record) or value.kind != kind:
        raise ValueError(f"something else in the place of {kind}")
    return value.fields


def _dict(value: object) -> dict[object, object]:
    if not isinstance(value, dict):
        raise TypeError("something else in the place of a dict")
    return value


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError("a name that is no text")
    return value
