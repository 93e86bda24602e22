"""Writes a planned import as a run with one base: the tensors are read, digested and written block by block.

The files are those of `docs/FORMAT.md`, under the names and through the documents of `store`. The folder has its name
only when all of them are durable, so there is no half of a run, and the run's own checks are as for any other.
"""

import ctypes
import os
import secrets
import socket
from collections.abc import Callable, Iterator
from datetime import UTC, datetime

import msgspec
import xxhash

from everstep import __version__, native
from everstep.foreign.arrive import stream
from everstep.foreign.arrive.plan import Plan, Source
from everstep.store import base, document, folder, names
from everstep.store.disk import Disk, write_new
from everstep.store.manifest import BaseEntry, Identity, Manifest, Term, claim_epoch, start_identity
from everstep.types import DTYPE_BYTES, Pair, Tensor, printed

EPOCH, WRITER = 1, 0


def land(url: str, plan: Plan, done: Callable[[int], None]) -> int:
    """Make the run at `url`; how many bytes it holds. StoreFailed when something is there already."""
    now = datetime.now(UTC).isoformat(timespec="seconds")
    run = secrets.token_hex(16)
    with folder.growing(url) as disk:
        disk.make_dir(names.writer(WRITER))
        entry = _base(disk, run, plan, done)
        term = Term(EPOCH, None, plan.step, 0, now, socket.gethostname(), os.getpid())
        claim_epoch(disk, Manifest(run, WRITER, 1, EPOCH, "closed", plan.step, (term,), (), (entry,)))
        start_identity(disk, Identity(run, now, __version__))
    return entry.nbytes


def _base(disk: Disk, run: str, plan: Plan, done: Callable[[int], None]) -> BaseEntry:
    """Tensors first: their digests are known when all of them have passed."""
    ordered = sorted(plan.tensors.values(), key=lambda item: (-DTYPE_BYTES[item[0].dtype], item[0].name))
    places, end = [], 0
    for tensor, _ in ordered:
        places.append(base.Stored(tensor, end, ""))
        end += tensor.nbytes
    header = base.safetensors_header(places, plan.step)
    digests: dict[str, Pair] = {}

    def pieces() -> Iterator[bytes | memoryview]:
        yield header
        for tensor, source in ordered:
            yield from _digested(tensor, source, digests, done)

    length = write_new(disk, names.tensors(WRITER, plan.step, EPOCH), pieces())
    stored = tuple(base.Stored(one.tensor, one.offset, printed(digests[one.tensor.name])) for one in places)
    content = msgspec.structs.replace(
        plan.content, parameters=base.parameters_digest(digests), state=base.state_digest(digests)
    )
    checksum = xxhash.xxh3_128_hexdigest(header)
    index = base.Index(run, WRITER, 1, plan.step, EPOCH, len(header), checksum, length, stored, content)
    text = document.pack("base", index)
    write_new(disk, names.base(WRITER, plan.step, EPOCH), [text])
    return BaseEntry(plan.step, EPOCH, length + len(text), xxhash.xxh3_128_hexdigest(text))


def _digested(
    tensor: Tensor, source: Source, digests: dict[str, Pair], done: Callable[[int], None]
) -> Iterator[bytes | memoryview]:
    """A tensor's bytes on their way; its digest is there once they have passed."""
    width, at, low, high = DTYPE_BYTES[tensor.dtype], 0, 0, 0
    for block in [memoryview(bytearray(source))] if isinstance(source, bytes) else stream.blocks(source):
        where = ctypes.addressof(ctypes.c_char.from_buffer(block)) if block.nbytes else 0
        ((one, two),) = native.digest([where], [block.nbytes // width], [width], [at // width], native.threads_max())
        low, high, at = (low + one) % (1 << 64), (high + two) % (1 << 64), at + block.nbytes
        yield block
        done(block.nbytes)
    digests[tensor.name] = low, high
