"""A whole state in an area of shared memory, that writes itself as a base."""

import ctypes
from collections.abc import Callable, Mapping, Sequence

import msgspec

from everstep import native
from everstep.store import base
from everstep.store.disk import Disk
from everstep.store.manifest import BaseEntry, Book
from everstep.store.state import parse
from everstep.types import DTYPE_BYTES, Bytes, Pair, Tensor, printed

DIGEST_THREADS = 2


class StateCopy:
    """`Snapshot` over an area. What lies in the ring is copied, so that its entry can go; the area is read in place."""

    def __init__(self, step: int, area: memoryview, pieces: Sequence[Bytes], done: Callable[[], None]) -> None:
        self.step = step
        self._area = area
        self._done = done
        self._table, self._said, self._small = parse([bytes(piece) for piece in pieces], len(area))

    def write(self, disk: Disk, book: Book) -> BaseEntry:
        """Digest what was copied and write it; the files are durable when this returns."""
        parts: list[tuple[Tensor, Bytes]] = [
            (item.tensor, self._area[item.place : item.place + item.tensor.nbytes]) for item in self._table
        ]
        parts += self._small
        found = digests(parts, DIGEST_THREADS)
        content = self._said.content
        if self._said.owned is not None:
            content, others = base.shared(content, frozenset(self._said.owned), found)
            beside = {tensor.name: base.Beside(tensor.box, printed(found[tensor.name])) for tensor, _ in parts}
            parts = [(tensor, data) for tensor, data in parts if tensor.name not in others]
            content = msgspec.structs.replace(content, beside={name: beside[name] for name in sorted(others)})
            found = {tensor.name: found[tensor.name] for tensor, _ in parts}
        content = msgspec.structs.replace(
            content, parameters=base.parameters_digest(found), state=base.state_digest(found)
        )
        manifest = book.manifest
        return base.write(
            disk, manifest.run, manifest.writer, self.step, manifest.epoch,
            [(tensor, data, printed(found[tensor.name])) for tensor, data in parts], content,
        )  # fmt: skip

    def release(self) -> None:
        self._done()


def digests(parts: Sequence[tuple[Tensor, Bytes]], threads: int) -> Mapping[str, Pair]:
    """Of each named piece of memory, its digest."""
    held = [_address(data) for _, data in parts]
    widths = [DTYPE_BYTES[tensor.dtype] for tensor, _ in parts]
    counts = [tensor.nbytes // width for (tensor, _), width in zip(parts, widths, strict=True)]
    found = native.digest([address for address, _ in held], counts, widths, [0] * len(parts), threads)
    return {tensor.name: pair for (tensor, _), pair in zip(parts, found, strict=True)}


def _address(data: Bytes) -> tuple[int, object]:
    """Where the bytes lie, and what keeps them there."""
    view = memoryview(data)
    if not view.nbytes:
        return 0, view
    if view.readonly:
        held = bytearray(view)
        return ctypes.addressof(ctypes.c_char.from_buffer(held)), held
    return ctypes.addressof(ctypes.c_char.from_buffer(view)), view
