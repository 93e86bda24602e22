"""`everstep export`: write, read back, and only then give it its name."""

import os
from collections.abc import Callable

import torch

from everstep.foreign.depart import dcp_folder, safetensors_files, torch_file, universal_folder
from everstep.foreign.depart.proof import prove
from everstep.foreign.depart.state import Departed, State, expected
from everstep.store import folder
from everstep.store.disk import LocalDisk

FILES = ("torch", "safetensors")
FOLDERS = ("hf", "dcp", "deepspeed-universal")
FORMATS = (*FILES, *FOLDERS)
MODEL_ONLY = ("safetensors", "hf")
ALIASED = ("torch", "dcp", "deepspeed-universal")
"""Formats that keep the further names of tied parameters."""


def refuse(target: str, form: str) -> None:
    """StoreFailed when the target is taken: asked before any work is done."""
    (folder.refuse_file if form in FILES else folder.refuse)(target)


def depart(
    state: State, target: str, form: str, *, shard_bytes: int = safetensors_files.SHARD_BYTES, verify: bool = True
) -> Departed:
    """The state at `target`, in a format that its own system loads: all of it and read back, or nothing."""
    optimizer = form not in MODEL_ONLY
    wanted = expected(state, aliases=form in ALIASED, optimizer=optimizer)

    def proved(place: str) -> None:
        if verify:
            change = universal_folder.changed(state) if form == "deepspeed-universal" else _unchanged
            prove(place, wanted, change, state if optimizer else None)

    if form in FILES:
        write_file = torch_file.write if form == "torch" else safetensors_files.write_one
        with folder.growing_file(target) as (disk, name):
            notes = write_file(disk, name, state)
            proved(os.path.join(disk.root, name))
            nbytes = os.stat(os.path.join(disk.root, name)).st_size
    else:
        with folder.growing(target) as disk:
            notes = _folder(form, shard_bytes)(disk, state)
            inside = universal_folder.tag(state) if form == "deepspeed-universal" else ""
            proved(os.path.join(disk.root, inside))
            files = [os.path.join(at, name) for at, _, names in os.walk(disk.root) for name in names]
            nbytes = sum(os.stat(file).st_size for file in files)
    return Departed(target, len(wanted), nbytes, tuple(notes))


def _folder(form: str, shard_bytes: int) -> Callable[[LocalDisk, State], list[str]]:
    if form == "hf":
        return lambda disk, state: safetensors_files.write_shards(disk, state, shard_bytes)
    return dcp_folder.write if form == "dcp" else universal_folder.write


def _unchanged(_name: str, tensor: torch.Tensor) -> torch.Tensor:
    return tensor
