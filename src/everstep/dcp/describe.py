"""Between torch's description of a checkpoint and ours: boxes, places and names, both ways."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import SavePlan

from everstep.capture.tensors import TORCH_DTYPES
from everstep.dcp.coverage import fault
from everstep.dcp.record import BLOCK_BYTES, Entry, Place, Record, Sealed
from everstep.errors import Damaged, Unsupported
from everstep.foreign.metadata import Index, Stretch
from everstep.types import Box


@dataclasses.dataclass(frozen=True, slots=True)
class Location:
    """A stretch of a data file, with the names by which torch's reader asks for it."""

    relative_path: str
    offset: int
    length: int
    transform_descriptors: None = None


def box(chunk: ChunkStorageMetadata) -> Box:
    return Box(tuple(chunk.offsets), tuple(low + n for low, n in zip(chunk.offsets, chunk.sizes, strict=True)))


def planned(plans: Sequence[SavePlan]) -> None:
    """Unsupported when what the ranks are going to write is not every element of every tensor, once.

    Plans that a planner keeps from the save before arrive here without their items; `written` checks these.
    """
    if not all(getattr(plan, "usable", True) for plan in plans):
        return
    held: dict[str, list[Box]] = {}
    shapes: dict[str, tuple[int, ...]] = {}
    for plan in plans:
        for item in plan.items:
            if item.tensor_data is not None:
                held.setdefault(item.index.fqn, []).append(box(item.tensor_data.chunk))
                shapes.setdefault(item.index.fqn, tuple(item.tensor_data.size))
    for name, parts in held.items():
        _require(fault(name, shapes[name], parts))


def written(
    metadata: Metadata, infos: Mapping[MetadataIndex, Any], files: Mapping[str, Sealed], replaces: tuple[str, ...]
) -> Record:
    """The record of a save, from torch's metadata and the places that all ranks reported; every part must be there."""
    numbers = {name: at for at, name in enumerate(files)}
    left = dict(infos)

    def place(index: MetadataIndex) -> Place:
        info = left.pop(index, None)
        if info is None or info.relative_path not in numbers:
            raise Unsupported(
                f"{index.fqn!r} at {index.offset and list(index.offset)} was planned, and no rank wrote it. Nothing "
                "was committed; the checkpoint before is as it was."
            )
        return Place(numbers[info.relative_path], info.offset, info.length)

    tensors, values = [], {}
    for name, said in metadata.state_dict_metadata.items():
        if isinstance(said, BytesStorageMetadata):
            values[name] = place(MetadataIndex(name))
            continue
        chunks = tuple((box(chunk), place(MetadataIndex(name, chunk.offsets))) for chunk in said.chunks)
        _require(fault(name, tuple(said.size), [part for part, _ in chunks]))
        tensors.append(Entry(name, str(said.properties.dtype).removeprefix("torch."), tuple(said.size), chunks))
    if left:
        raise Unsupported(
            f"{next(iter(left)).fqn!r} was written, and the plan does not list it. Nothing was committed."
        )
    return Record(
        str(torch.__version__), BLOCK_BYTES, tuple(files.values()), tuple(tensors), values,
        _paths(metadata.planner_data), replaces,
    )  # fmt: skip


def metadata(index: Index) -> Metadata:
    """What torch's planners want to know of a checkpoint."""
    described: dict[str, TensorStorageMetadata | BytesStorageMetadata] = {}
    places: dict[MetadataIndex, Location] = {}
    for name, sharded in index.tensors.items():
        chunks = []
        for part, stretch in sharded.chunks:
            chunks.append(ChunkStorageMetadata(torch.Size(part.low), torch.Size(part.shape)))
            places[MetadataIndex(name, part.low)] = _location(stretch)
        properties = TensorProperties(dtype=_dtype(name, sharded.dtype))
        described[name] = TensorStorageMetadata(properties, torch.Size(sharded.shape), chunks)
    for name, stretch in index.values.items():
        described[name] = BytesStorageMetadata()
        places[MetadataIndex(name)] = _location(stretch)
    return Metadata(described, planner_data=dict(index.paths) or None, storage_data=places)


def _location(stretch: Stretch) -> Location:
    return Location(stretch.path.rpartition("/")[2], stretch.offset, stretch.nbytes)


def _dtype(name: str, said: str) -> torch.dtype:
    """By our name for it, or by torch's."""
    found = TORCH_DTYPES.get(said, getattr(torch, said, None))
    if not isinstance(found, torch.dtype):
        raise Damaged(f"{name!r} is said to be of {said[:40]!r}, which this torch does not know.")
    return found


def _paths(planner: object) -> dict[str, tuple[str | int, ...]] | None:
    """Paths in a nested state dict, as torch's own planner leaves them; another planner's data has no place here."""
    if planner is None:
        return None
    if isinstance(planner, dict) and all(
        isinstance(name, str) and isinstance(path, tuple) and all(type(key) in (str, int) for key in path)
        for name, path in planner.items()
    ):
        return dict(planner)
    raise Unsupported(
        f"the planner keeps {type(planner).__name__} in the metadata, which only a pickle can hold. Use torch's own "
        "planner, or one that keeps None or paths."
    )


def _require(wrong: str | None) -> None:
    if wrong:
        raise Unsupported(
            f"the plan of this save is wrong: {wrong}. Nothing was committed; the checkpoint before is as it was."
        )
