"""Whether a base is what was written, every byte of it. Reads only, in small pieces; no torch."""

import ctypes
from collections.abc import Callable

from everstep import native
from everstep.errors import Damaged
from everstep.store import base, names
from everstep.store.disk import Disk, Source
from everstep.store.manifest import BaseEntry
from everstep.types import DTYPE_BYTES, combine, printed

CHUNK_BYTES = 32 << 20
"""Read and digested at once: a multiple of every element's width, so that memory stays small however large a tensor."""


def base_faults(disk: Disk, rank: int, entry: BaseEntry, done: Callable[[int], None] = lambda _n: None) -> list[str]:
    """Everything that is wrong with a base; empty when each of its bytes is what was written."""
    path = names.tensors(rank, entry.step, entry.epoch)
    try:
        index = base.load(disk, rank, entry)
        source = disk.source(path)
    except Damaged as damaged:
        return [str(damaged)]
    except OSError as gone:
        return [f"base {names.short(path)}: cannot be read ({gone})."]
    try:
        faults = [
            f"base {names.short(path)}: tensor {stored.tensor.name!r} fails its digest."
            for stored in index.tensors
            if digest(source, index.header_bytes + stored.offset, stored, done) != stored.digest
        ]
        return faults or _index_faults(index, path)
    except (OSError, EOFError) as bad:
        return [f"base {names.short(path)}: cannot be read ({bad})."]
    finally:
        source.close()


def digest(source: Source, offset: int, stored: base.Stored, done: Callable[[int], None]) -> str:
    """The digest of a tensor in a file, chunk by chunk: digests of parts add up."""
    width, low, high = DTYPE_BYTES[stored.tensor.dtype], 0, 0
    memory = bytearray(min(CHUNK_BYTES, stored.tensor.nbytes))
    where = ctypes.addressof(ctypes.c_char.from_buffer(memory)) if memory else 0
    for at in range(0, stored.tensor.nbytes, CHUNK_BYTES):
        count = min(CHUNK_BYTES, stored.tensor.nbytes - at)
        source.read_into(offset + at, memoryview(memory)[:count])
        ((one, two),) = native.digest([where], [count // width], [width], [at // width], native.threads_max())
        low, high = (low + one) % (1 << 64), (high + two) % (1 << 64)
        done(count)
    return printed((low, high))


def _index_faults(index: base.Index, path: str) -> list[str]:
    pairs = [(s.tensor.name, (int(s.digest[:16], 16), int(s.digest[16:], 16))) for s in index.tensors]
    same = combine(pair for pair in pairs if pair[0].startswith("model/")) == index.content.parameters
    return [] if same else [f"base {names.short(path)}: its tensors do not add up to its digest of parameters."]
