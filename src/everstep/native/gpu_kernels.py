"""The Triton kernels behind gpu.py. Imported only once there are CUDA tensors: torch's CUDA builds bring triton along.

One launch covers many tensors. Each program owns one chunk of one tensor: `owners` names the row of each program's
tensor, and a row holds (address, elements, first program, place). A chunk is worked on in blocks of ROWS x LANES
elements: LANES neighbours lie in one thread and travel in one access of up to 16 bytes. Only the last block of a
tensor is masked, because a mask that may cut through neighbours splits every access into single elements.
"""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators
# ruff: noqa: N803, N806
# What follows is Triton's language: its types are not Python's, and its constants are written in capitals.

from __future__ import annotations

import triton  # type: ignore[import-not-found, import-untyped, unused-ignore]
import triton.language as tl  # type: ignore[import-not-found, import-untyped, unused-ignore]

WORDS = {1: tl.uint8, 2: tl.uint16, 4: tl.uint32, 8: tl.uint64}
"""Elements by their width: every kernel moves bits, none computes with numbers."""

_INDEX_KEY = tl.constexpr(0x9E3779B97F4A7C15)
_M1 = tl.constexpr(0xBF58476D1CE4E5B9)
_M2 = tl.constexpr(0x94D049BB133111EB)
_U64 = tl.constexpr(1 << 64)


@triton.jit
def digest(rows, owners, sums, WORD: tl.constexpr, ROWS: tl.constexpr, LANES: tl.constexpr, TURNS: tl.constexpr):
    """Add digest.hpp's two sums over this chunk to `sums[place]`. Integers wrap, so no order changes them."""
    BLOCK: tl.constexpr = ROWS * LANES
    row, words, start, whole, end = _chunk(rows, owners, WORD, LANES, BLOCK, TURNS)
    tile = _tile(ROWS, LANES)
    # The keys of a row's first lane are carried from block to block: two additions where the product is three.
    row_keys = (start + tl.arange(0, ROWS) * LANES).to(tl.uint64) * _INDEX_KEY
    lane_keys = tl.arange(0, LANES).to(tl.uint64) * _INDEX_KEY
    low = tl.zeros((ROWS,), tl.uint64)
    high = tl.zeros((ROWS,), tl.uint64)
    for at in range(start, whole, BLOCK):
        z = _mixed(tl.load(words + at + tile), row_keys[:, None] + lane_keys[None, :])
        low += tl.sum(z, 1)
        high += tl.sum(_product_of_halves(z), 1)
        row_keys += BLOCK * _INDEX_KEY % _U64
    if whole < end:
        inside = tile < end - whole
        bits = tl.load(words + whole + tile, mask=inside, other=0)
        z = tl.where(inside, _mixed(bits, row_keys[:, None] + lane_keys[None, :]), 0)
        low += tl.sum(z, 1)
        high += tl.sum(_product_of_halves(z), 1)
    place = sums + 2 * tl.load(row + 3)
    tl.atomic_add(place, tl.sum(low, 0).to(tl.int64, bitcast=True), sem="relaxed")
    tl.atomic_add(place + 1, tl.sum(high, 0).to(tl.int64, bitcast=True), sem="relaxed")


@triton.jit
def round_pack(rows, owners, flat, ROWS: tl.constexpr, LANES: tl.constexpr, TURNS: tl.constexpr):
    """Write this chunk's float32 to element `place` of `flat` as bfloat16, and back where rounding changed them."""
    BLOCK: tl.constexpr = ROWS * LANES
    row, words, start, whole, end = _chunk(rows, owners, tl.uint32, LANES, BLOCK, TURNS)
    target = flat + tl.multiple_of(tl.load(row + 3), 32)
    tile = _tile(ROWS, LANES)
    for at in range(start, whole, BLOCK):
        bits = tl.load(words + at + tile)
        rounded = _bfloat16(bits)
        tl.store(target + at + tile, rounded.to(tl.int16))
        # One answer for a thread's neighbours, so that one access writes them all, or none does.
        differs = tl.max((bits != rounded << 16).to(tl.int32), 1, keep_dims=True) != 0
        tl.store(words + at + tile, rounded << 16, mask=tl.broadcast_to(differs, (ROWS, LANES)))
    if whole < end:
        inside = tile < end - whole
        bits = tl.load(words + whole + tile, mask=inside, other=0)
        rounded = _bfloat16(bits)
        tl.store(target + whole + tile, rounded.to(tl.int16), mask=inside)
        tl.store(words + whole + tile, rounded << 16, mask=inside & (bits != rounded << 16))


@triton.jit
def pack(rows, owners, flat, WORD: tl.constexpr, ROWS: tl.constexpr, LANES: tl.constexpr, TURNS: tl.constexpr):
    """Copy this chunk to its part of the bytes of `flat` that begin at `place`."""
    BLOCK: tl.constexpr = ROWS * LANES
    row, words, start, whole, end = _chunk(rows, owners, WORD, LANES, BLOCK, TURNS)
    target = (flat + tl.multiple_of(tl.load(row + 3), 64)).to(tl.pointer_type(WORD))
    tile = _tile(ROWS, LANES)
    for at in range(start, whole, BLOCK):
        tl.store(target + at + tile, tl.load(words + at + tile))
    if whole < end:
        inside = tile < end - whole
        tl.store(target + whole + tile, tl.load(words + whole + tile, mask=inside), mask=inside)


@triton.jit
def _chunk(rows, owners, WORD: tl.constexpr, LANES: tl.constexpr, BLOCK: tl.constexpr, TURNS: tl.constexpr):
    """This program's row, its tensor, and its chunk: whole blocks from `start` to `whole`, then a part up to `end`.

    The hint of alignment must stand here: on what a function returns it is lost, and every access with it is scalar.
    """
    program = tl.program_id(0)
    row = rows + tl.load(owners + program) * 4
    words = tl.multiple_of(tl.load(row).to(tl.pointer_type(WORD)), LANES * WORD.primitive_bitwidth // 8)
    count = tl.load(row + 1)
    start = (program - tl.load(row + 2)) * (BLOCK * TURNS)
    end = tl.minimum(start + BLOCK * TURNS, count)
    return row, words, start, start + (end - start) // BLOCK * BLOCK, end


@triton.jit
def _tile(ROWS: tl.constexpr, LANES: tl.constexpr):
    """The numbers of a block's elements: neighbours along the second axis."""
    return tl.arange(0, ROWS)[:, None] * LANES + tl.arange(0, LANES)[None, :]


@triton.jit
def _mixed(bits, key):
    z = (bits.to(tl.uint64) ^ key) * _M1
    z ^= z >> 32
    return z * _M2


@triton.jit
def _product_of_halves(z):
    return (z & 0xFFFFFFFF) * (z >> 32)


@triton.jit
def _bfloat16(bits):
    """Upper halves of float32 bits, rounded to nearest, ties to even; every NaN is 0x7FFF, as CUDA's own cast gives."""
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    return tl.where((bits & 0x7FFFFFFF) > 0x7F800000, 0x7FFF, rounded)
