"""`--format safetensors` and `--format hf`: the model alone, in one file, or in several with an index."""

import json
from collections.abc import Iterator, Mapping, Sequence

import torch

from everstep.capture.tensors import describe, on_host
from everstep.errors import Misuse, Unsupported
from everstep.foreign.depart.state import State
from everstep.foreign.depart.trees import memory
from everstep.foreign.hf import INDEX, SINGLE
from everstep.store import base
from everstep.store.disk import Disk, write_new
from everstep.types import DTYPE_BYTES, Bytes

SHARD_BYTES = 5_000_000_000
"""What Hugging Face's own libraries cut at."""
ALONE = "the format carries no optimizer, no step and no state=; it has no checksums either."


def write_one(disk: Disk, name: str, state: State) -> list[str]:
    """All of the model in one file."""
    _write(disk, name, state.model, state.step)
    return _notes(state)


def write_shards(disk: Disk, state: State, shard_bytes: int) -> list[str]:
    """The model in files of at most `shard_bytes`, or of one tensor, and the index that names them."""
    if shard_bytes < 1:
        raise Misuse(f"--shard-bytes {shard_bytes}: must be at least 1.")
    shards = _cut(state.model, shard_bytes)
    names = [SINGLE] if len(shards) == 1 else [
        f"model-{at + 1:05d}-of-{len(shards):05d}.safetensors" for at in range(len(shards))
    ]  # fmt: skip
    for name, shard in zip(names, shards, strict=True):
        _write(disk, name, {key: state.model[key] for key in shard}, state.step)
    if len(shards) > 1:
        where = {key: name for name, shard in zip(names, shards, strict=True) for key in shard}
        total = sum(_nbytes(tensor) for tensor in state.model.values())
        text = json.dumps({"metadata": {"total_size": total}, "weight_map": where}, indent=1)
        write_new(disk, INDEX, [text.encode()])
    return [*_notes(state), "config.json and the tokenizer are not in a run: copy them from the model's folder."]


def _cut(tensors: Mapping[str, torch.Tensor], shard_bytes: int) -> list[list[str]]:
    shards: list[list[str]] = [[]]
    held = 0
    for name, tensor in tensors.items():
        if shards[-1] and held + _nbytes(tensor) > shard_bytes:
            shards.append([])
            held = 0
        shards[-1].append(name)
        held += _nbytes(tensor)
    return shards


def _nbytes(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def _write(disk: Disk, name: str, tensors: Mapping[str, torch.Tensor], step: int) -> None:
    described = [describe(key, on_host(tensor)) for key, tensor in tensors.items()]
    if complex_ones := [one.name for one in described if one.dtype in base.REALS]:
        raise Unsupported(f"{complex_ones[0]!r} is complex, which safetensors cannot hold. Use --format torch.")
    ordered = sorted(described, key=lambda one: (-DTYPE_BYTES[one.dtype], one.name))
    places, end = [], 0
    for one in ordered:
        places.append(base.Stored(one, end, ""))
        end += one.nbytes
    write_new(disk, name, _pieces(base.safetensors_header(places, step), [tensors[one.name] for one in ordered]))


def _pieces(header: bytes, tensors: Sequence[torch.Tensor]) -> Iterator[Bytes]:
    yield header
    for tensor in tensors:
        held = on_host(tensor)  # alive until its bytes are written
        yield memory(held)


def _notes(state: State) -> list[str]:
    notes = [ALONE]
    if state.aliases:
        names = ", ".join(f"{alias} is {name}" for alias, name in list(state.aliases.items())[:4])
        notes.append(f"tied parameters are there under their first names: {names}; the program ties them again.")
    if state.extra:
        notes.append(f"the states of {len(state.extra)} modules that are not tensors are not carried.")
    return notes
