"""A base's tensors, each proved by its digest before anyone sees it."""

import ctypes

import torch

from everstep import native
from everstep.capture.tensors import view
from everstep.errors import Damaged
from everstep.store import base, names
from everstep.store.disk import Disk
from everstep.store.manifest import BaseEntry
from everstep.types import DTYPE_BYTES, printed


def load(disk: Disk, rank: int, entry: BaseEntry) -> tuple[base.Index, dict[str, torch.Tensor]]:
    """The index and all tensors; Damaged when any byte is not what was written."""
    index = base.load(disk, rank, entry)
    tensors: dict[str, torch.Tensor] = {}
    path = names.tensors(rank, entry.step, entry.epoch)
    source = disk.source(path)
    try:
        for stored in index.tensors:
            memory = memoryview(bytearray(stored.tensor.nbytes))
            source.read_into(index.header_bytes + stored.offset, memory)
            if digest(stored, memory) != stored.digest:
                raise Damaged(f"base {names.short(path)}: tensor {stored.tensor.name!r} fails its digest.")
            tensors[stored.tensor.name] = view(memory, stored.tensor)
    except (OSError, EOFError) as bad:
        raise Damaged(f"base {names.short(path)}: cannot be read ({bad}).") from bad
    finally:
        source.close()
    return index, tensors


def digest(stored: base.Stored, memory: memoryview) -> str:
    """The digest of bytes that lie in memory as the base stores them."""
    width = DTYPE_BYTES[stored.tensor.dtype]
    where = ctypes.addressof(ctypes.c_char.from_buffer(memory)) if memory.nbytes else 0
    return printed(native.digest([where], [memory.nbytes // width], [width], [0], native.threads_max())[0])
