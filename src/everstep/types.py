"""The nouns of the data path. No torch, no files: names, numbers and boxes."""

import math
from collections.abc import Iterable
from operator import sub

import msgspec
import xxhash

ALIGN = 64
"""Bodies and tensors start at multiples of this, in files and in memory."""

DTYPE_BYTES = {
    "F64": 8, "F32": 4, "F16": 2, "BF16": 2, "I64": 8, "I32": 4, "I16": 2, "I8": 1, "U64": 8, "U32": 4, "U16": 2,
    "U8": 1, "BOOL": 1, "F8_E4M3": 1, "F8_E5M2": 1, "C64": 8, "C128": 16,
}  # fmt: skip
"""safetensors' names of element types, and C128, which it lacks."""

Bytes = bytes | bytearray | memoryview

Span = tuple[int, int]
"""The first and the last of several steps."""
Pair = tuple[int, int]
"""A tensor's digest as two 64-bit sums."""


class Box(msgspec.Struct, frozen=True, array_like=True):
    """An axis-aligned part of a logical tensor: low <= index < high on every axis."""

    low: tuple[int, ...]
    high: tuple[int, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(map(sub, self.high, self.low))


def whole(shape: Iterable[int]) -> Box:
    """The box that is all of a tensor; what one process without sharding always holds."""
    high = tuple(shape)
    return Box((0,) * len(high), high)


class Tensor(msgspec.Struct, frozen=True, array_like=True):
    """What a file says of one box of one logical tensor: enough to check every length before allocating."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    box: Box
    nbytes: int

    def fault(self) -> str | None:
        """Why this description cannot be right, or None."""
        if self.dtype not in DTYPE_BYTES:
            return f"tensor {self.name!r}: unknown element type {self.dtype!r}"
        if not len(self.shape) == len(self.box.low) == len(self.box.high) <= 64:
            return f"tensor {self.name!r}: box and shape differ in rank"
        if any(not 0 <= lo <= h <= n for lo, h, n in zip(self.box.low, self.box.high, self.shape, strict=True)):
            return f"tensor {self.name!r}: box {self.box} leaves the shape {self.shape}"
        if (
            math.prod(max(1, n) for n in self.shape) >= 1 << 58
        ):  # a tensor without elements can still be too large for torch
            return f"tensor {self.name!r}: the shape {self.shape} is too large"
        if math.prod(self.box.shape) * DTYPE_BYTES[self.dtype] != self.nbytes:
            return f"tensor {self.name!r}: {self.nbytes} bytes cannot hold {self.box.shape} of {self.dtype}"
        return None


class Piece(msgspec.Struct, frozen=True, array_like=True):
    """A box of a logical tensor in a buffer: its first element lies at `base`, and `strides` has a step for every axis
    of the logical tensor; all in elements."""

    box: Box
    base: int
    strides: tuple[int, ...]


class Local(msgspec.Struct, frozen=True, array_like=True):
    """What a rank holds under one of its names: pieces of a logical tensor in a buffer, which a bucket shares."""

    logical: str
    logical_shape: tuple[int, ...]
    shape: tuple[int, ...]
    """Of the local tensor; of a flat one, the length of the rank's share with its padding."""
    pieces: tuple[Piece, ...]
    versions: tuple[str, ...] = ()
    """Where ranks hold values of their own, axis 0 of the logical tensor counts them; this is how they become one:
    "mean", "sum" or "first"."""

    def fault(self) -> str | None:
        """Why this cannot be right, or None: every piece must lie in both tensors, each in elements of its own."""
        size, rank = math.prod(self.shape), len(self.logical_shape)
        if self.versions and (not rank or self.versions not in {("mean",), ("sum",), ("first",)}):
            return f"the versions of {self.logical!r} cannot become one by {self.versions}"
        for piece in self.pieces:
            box, steps = piece.box, piece.strides
            if not len(box.low) == len(box.high) == len(steps) == rank <= 64:
                return f"a piece of {self.logical!r} has another rank than its shape"
            if any(not 0 <= lo <= h <= n for lo, h, n in zip(box.low, box.high, self.logical_shape, strict=True)):
                return f"a piece {box} of {self.logical!r} leaves the shape {self.logical_shape}"
            last = piece.base + sum((n - 1) * step for n, step in zip(box.shape, steps, strict=True))
            if not math.prod(box.shape):
                continue
            if piece.base < 0 or min(steps, default=0) < 0 or last >= size:
                return f"a piece of {self.logical!r} leaves the {size} elements that hold it"
        if sum(math.prod(piece.box.shape) for piece in self.pieces) > size:
            return f"the pieces of {self.logical!r} are more than the {size} elements that hold them"
        return None


def boxed(name: str, shape: tuple[int, ...], box: Box) -> Local:
    """What a rank holds that has one box of a tensor, in one piece."""
    extents, steps, size = box.shape, [], 1
    for extent in reversed(extents):
        steps.append(size)
        size *= extent
    return Local(name, shape, extents, (Piece(box, 0, tuple(reversed(steps))),) if size else ())


class DataPlace(msgspec.Struct, frozen=True, array_like=True):
    """Which part of the data a rank reads: its number among those that read different parts, and theirs."""

    rank: int
    world: int


UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


def size(count: int) -> str:
    """So many bytes, as people say it."""
    value, at = float(count), 0
    while value >= 1024 and at + 1 < len(UNITS):
        value, at = value / 1024, at + 1
    return f"{count} B" if at == 0 else f"{value:.1f} {UNITS[at]}"


def padded(count: int) -> int:
    """`count` rounded up to the alignment."""
    return -(-count // ALIGN) * ALIGN


def combine(digests: Iterable[tuple[str, Pair]]) -> str:
    """One digest of many named tensors, as 32 hex digits; the order does not matter."""
    total = 0
    for name, (lo, hi) in digests:
        total += xxhash.xxh3_128_intdigest(b"%s\0%016x%016x" % (name.encode("utf-8", "surrogatepass"), lo, hi))
    return f"{total % (1 << 128):032x}"


def printed(pair: Pair) -> str:
    """A tensor's digest as 32 hex digits."""
    return f"{pair[0]:016x}{pair[1]:016x}"
