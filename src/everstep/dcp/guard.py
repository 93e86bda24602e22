"""What stands between a checkpoint's values and torch's planner, which unpickles them without restraint.

Everything in a state dict that is not a tensor is saved by `torch.save`, and `DefaultLoadPlanner` loads it with
`weights_only=False`: a file can name any function and have it called. The bytes are handed over as they were saved,
but only if all that they name is on the list that torch itself keeps for `weights_only=True`, with what the program
added to it by `torch.serialization.add_safe_globals`. A planner with a `load_bytes` of its own decides for itself.
"""

import io
from typing import Any

import torch
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.planner import LoadPlanner, ReadItem
from torch.serialization import get_unsafe_globals_in_checkpoint

from everstep.errors import Unsupported
from everstep.foreign.tiling import some


class Guarded:
    """A planner as a reader uses it, with one question before it unpickles."""

    def __init__(self, planner: LoadPlanner, path: str) -> None:
        self._planner = planner
        self._path = path
        self._unpickles = getattr(type(planner), "load_bytes", None) is DefaultLoadPlanner.load_bytes

    def load_bytes(self, read_item: ReadItem, value: io.BytesIO) -> None:
        if self._unpickles:
            refuse_code(value, f"{self._path}: the value {read_item.storage_index.fqn!r}")
            value.seek(0)
        self._planner.load_bytes(read_item, value)

    def resolve_tensor(self, read_item: ReadItem) -> torch.Tensor:
        return self._planner.resolve_tensor(read_item)

    def commit_tensor(self, read_item: ReadItem, tensor: torch.Tensor) -> None:
        self._planner.commit_tensor(read_item, tensor)


def refuse_code(value: io.BytesIO, what: str) -> None:
    """Unsupported when loading these bytes could call something that torch does not hold to be safe."""
    try:
        unsafe: list[Any] = get_unsafe_globals_in_checkpoint(value)
    except Exception as odd:  # torch raises whatever its parser meets; nothing was unpickled, and it is refused below
        raise Unsupported(
            f"{what} is not what torch.save writes, so it cannot be known what loading it would call ({odd}). It was "
            "not loaded. Load it with a planner that has a load_bytes of its own."
        ) from odd
    if unsafe:
        raise Unsupported(
            f"{what} names {some(sorted(map(str, unsafe)))}, which loading it would call. It was not loaded. If you "
            "trust who wrote it, allow them first: torch.serialization.add_safe_globals([...])."
        )
