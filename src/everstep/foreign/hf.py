"""Models as Hugging Face's libraries keep them: safetensors, one file or several with an index."""

import json
import os
from typing import Any

from everstep.errors import Damaged, Unsupported
from everstep.foreign.files import File, beside, listed
from everstep.foreign.found import Checkpoint, Found, named
from everstep.foreign.safetensors_file import Header, header
from everstep.frugal import refuse_bomb

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
INDEX_BYTES_MAX = 100_000_000
SUFFIX = ".safetensors"
NOTES = (
    "safetensors holds no checksums: verify proves nothing here.",
    "there is no optimizer state and no step in this format.",
    "tensors that shared their bytes are there under one of their names; the format does not keep the others.",
)


def read(path: str) -> Checkpoint:
    """A .safetensors file, or a folder with one, or with an index."""
    if not os.path.isdir(path):
        return _checkpoint(path, [header(path)], ())
    present = listed(path)
    if INDEX in present:
        return _indexed(path)
    files = [SINGLE] if SINGLE in present else [name for name in present if name.endswith(SUFFIX)]
    if len(files) != 1:
        raise Unsupported(
            f"{path}: has {len(files)} {SUFFIX} files and no {INDEX}, which says what they are to each other."
        )
    return _checkpoint(path, [header(os.path.join(path, files[0]))], ())


def _indexed(folder: str) -> Checkpoint:
    where = os.path.join(folder, INDEX)
    weights, total_bytes = _index(where)
    shards = {name: header(beside(folder, name, where)) for name in sorted(set(weights.values()))}
    for name, shard in weights.items():
        if name not in shards[shard].tensors:
            raise Damaged(
                f"{shards[shard].path}: {name!r} is missing; the index says that it is here. Copy the file again."
            )
    extra = [
        f"{name!r} in {shard}" for shard, one in shards.items() for name in one.tensors if weights.get(name) != shard
    ]
    if extra:
        raise Damaged(
            f"{where}: does not list {extra[0]} and {len(extra) - 1} more. It is of another save; copy it again."
        )
    held = sum(place.nbytes for one in shards.values() for stored in one.tensors.values() for _, place in stored.parts)
    notes = [] if total_bytes in (None, held) else [f"the index claims {total_bytes} bytes; the files hold {held}."]
    return _checkpoint(folder, list(shards.values()), tuple(notes))


def _index(where: str) -> tuple[dict[str, str], int | None]:
    with File(where) as file:
        if file.size > INDEX_BYTES_MAX:
            raise Unsupported(f"{where}: {file.size} bytes; at most {INDEX_BYTES_MAX} are read.")
        content = file.read(0, file.size)
    refuse_bomb(content, name=where)
    try:
        said: Any = json.loads(content)
        weights, total = said["weight_map"], said.get("metadata", {}).get("total_size")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as wrong:
        raise Damaged(
            f"{where}: is no index of safetensors. Copy it again; the data files are not concerned."
        ) from wrong
    if not isinstance(weights, dict) or not all(isinstance(shard, str) for shard in weights.values()):
        raise Damaged(f"{where}: does not say which file holds which tensor. Copy it again.")
    return weights, int(total) if isinstance(total, int | float) else None


def _checkpoint(path: str, headers: list[Header], notes: tuple[str, ...]) -> Checkpoint:
    tensors: list[Found] = []
    for one in headers:
        if "DCP_SHARDING_INFO" in one.texts:
            raise Unsupported(
                f"{one.path}: a shard of torch.distributed.checkpoint that was not consolidated; the tensors' whole "
                f"shapes are not in it. Consolidate it with torch's consolidate_safetensors_files."
            )
        tensors += [found for name, stored in one.tensors.items() for found in named(f"model/{name}", stored)]
    return Checkpoint("safetensors", path, tuple(tensors), notes=(*NOTES, *notes))
