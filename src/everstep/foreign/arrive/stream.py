"""The bytes of a logical tensor in row-major order, from wherever its boxes lie. One tensor at a time, or less.

A tensor in one piece passes through in blocks; one that was cut is put together in memory, and only one at a time.
"""

import math
from collections.abc import Iterator

import torch

from everstep.foreign.files import File
from everstep.foreign.found import Part, Stored
from everstep.layout import boxes
from everstep.types import DTYPE_BYTES, Box

BLOCK_BYTES = 32 << 20
"""Handed on at once: a multiple of every element's width."""
INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64, 16: torch.complex128}
"""Elements are moved, never computed with: any type of their width will do."""


def nbytes(stored: Stored) -> int:
    return math.prod(stored.shape) * DTYPE_BYTES[stored.dtype]


def blocks(stored: Stored) -> Iterator[memoryview]:
    """Its bytes in order, each block writable and good until the next is asked for."""
    if len(stored.parts) > 1:
        whole = memoryview(_joined(stored))
        for at in range(0, len(whole), BLOCK_BYTES):
            yield whole[at : at + BLOCK_BYTES]
        return
    _, place = stored.parts[0]
    memory = memoryview(bytearray(min(BLOCK_BYTES, place.nbytes)))
    with File(place.path) as file:
        for at in range(0, place.nbytes, BLOCK_BYTES):
            block = memory[: min(BLOCK_BYTES, place.nbytes - at)]
            file.read_into(place.offset + at, block)
            yield block


def content(stored: Stored) -> bytes:
    """All of its bytes, for the small ones."""
    return b"".join(bytes(block) for block in blocks(stored))


def same(one: Stored, two: Stored) -> bool:
    """Whether two tensors have the same type, shape and bits."""
    if (one.dtype, one.shape) != (two.dtype, two.shape):
        return False
    return all(left == right for left, right in zip(blocks(one), blocks(two), strict=True))


def _joined(stored: Stored) -> bytearray:
    width = DTYPE_BYTES[stored.dtype]
    memory = bytearray(nbytes(stored))
    steps = boxes.strides(stored.shape)
    for box, place in _once(stored.parts):
        if not place.nbytes:
            continue
        with File(place.path) as file:
            if _in_one_piece(box, stored.shape):
                start = width * sum(low * step for low, step in zip(box.low, steps, strict=True))
                file.read_into(place.offset, memoryview(memory)[start : start + place.nbytes])
                continue
            held = bytearray(place.nbytes)
            file.read_into(place.offset, memoryview(held))
        kind = INTEGERS[width]
        target = torch.frombuffer(memory, dtype=kind).view(stored.shape)
        target[boxes.slices(box)] = torch.frombuffer(held, dtype=kind).view(box.shape)
    return memory


def _once(parts: tuple[Part, ...]) -> list[Part]:
    """Replicas of a box were compared by `check`; the first will do."""
    found: dict[Box, Part] = {}
    for part in parts:
        found.setdefault(part[0], part)
    return list(found.values())


def _in_one_piece(box: Box, shape: tuple[int, ...]) -> bool:
    """Whether the box's elements follow each other in the whole tensor: one row of something, then all of the rest."""
    extents = box.shape
    cut = next((axis for axis, n in enumerate(extents) if n != 1), len(shape))
    return extents[cut + 1 :] == shape[cut + 1 :]
