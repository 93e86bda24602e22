"""Tensors of a base, from its file into memory that is there already: by several threads, each piece digested while it
is still in the processor's cache, so that proving what is read costs next to nothing beside reading it.
"""

import ctypes
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor

import torch

from everstep import native
from everstep.errors import Damaged
from everstep.store import names
from everstep.store.base import Index, Stored
from everstep.store.disk import Disk, Source
from everstep.store.manifest import BaseEntry
from everstep.types import DTYPE_BYTES, printed

THREADS = 4
"""A disk needs several readers to give all it has; beyond four none of those measured gave more."""
STRETCH_BYTES = 32 << 20
"""What one thread reads at a time: a multiple of every element's width."""
PIECE_BYTES = 1 << 20
"""Read and digested before the next: it stays in the second-level cache meanwhile."""


def fetch(disk: Disk, rank: int, entry: BaseEntry, index: Index, targets: Mapping[str, torch.Tensor]) -> None:
    """Fill the targets, contiguous tensors in host memory; Damaged when any byte is not what was written.

    What is not among them is not read.
    """
    path = names.tensors(rank, entry.step, entry.epoch)
    wanted = [stored for stored in index.tensors if stored.tensor.name in targets]
    stretches = [
        (stored, at, min(at + STRETCH_BYTES, stored.tensor.nbytes))
        for stored in wanted for at in range(0, max(1, stored.tensor.nbytes), STRETCH_BYTES)
    ]  # fmt: skip
    sums = {stored.tensor.name: (0, 0) for stored in wanted}
    try:
        source = disk.source(path)
        try:
            with ThreadPoolExecutor(THREADS, "everstep-fetch") as pool:
                for (stored, _, _), (low, high) in zip(
                    stretches,
                    pool.map(lambda one: _stretch(source, index.header_bytes, targets, *one), stretches),
                    strict=True,
                ):
                    known = sums[stored.tensor.name]
                    sums[stored.tensor.name] = (known[0] + low) % (1 << 64), (known[1] + high) % (1 << 64)
        finally:
            source.close()
    except (OSError, EOFError) as bad:
        raise Damaged(f"base {names.short(path)}: cannot be read ({bad}).") from bad
    for stored in wanted:
        if printed(sums[stored.tensor.name]) != stored.digest:
            raise Damaged(f"base {names.short(path)}: tensor {stored.tensor.name!r} fails its digest.")


def _stretch(
    source: Source, header_bytes: int, targets: Mapping[str, torch.Tensor], stored: Stored, first: int, last: int
) -> tuple[int, int]:
    """Read some of a tensor; the sums of its digest that these bytes make up."""
    target, width = targets[stored.tensor.name], DTYPE_BYTES[stored.tensor.dtype]
    if target.nbytes != stored.tensor.nbytes or not target.is_contiguous() or target.device.type != "cpu":
        raise ValueError(f"{stored.tensor.name}: {stored.tensor.nbytes} bytes have no place in such a target")
    where, low, high = target.data_ptr(), 0, 0
    for at in range(first, last, PIECE_BYTES):
        count = min(PIECE_BYTES, last - at)
        memory = memoryview((ctypes.c_char * count).from_address(where + at)).cast("B")
        source.read_into(header_bytes + stored.offset + at, memory)
        ((one, two),) = native.digest([where + at], [count // width], [width], [at // width], 1)
        low, high = low + one, high + two
    return low, high
