"""The digest in torch operators: what `digest` must return, on any device. The kernels are tested against it."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

# The 64-bit constants of digest.hpp as two's complement: torch's int64 wraps as u64 does.
_INDEX_KEY = 0x9E3779B97F4A7C15 - (1 << 64)
_M1 = 0xBF58476D1CE4E5B9 - (1 << 64)
_M2 = 0x94D049BB133111EB - (1 << 64)
_LOW_HALF = 0xFFFFFFFF
_WORDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64, 16: torch.int64}
_CHUNK_ELEMENTS = 1 << 22


def digest(tensor: torch.Tensor, start: int = 0) -> tuple[int, int]:
    """The two sums over `tensor`, in the row-major order of its elements, the first of which has index `start`."""
    return digest_at(tensor.detach().reshape(-1), start, (1,))


def digest_at(tensor: torch.Tensor, first: int, steps: Sequence[int]) -> tuple[int, int]:
    """The same where the first element has index `first`, and `steps` lead along the axes."""
    width, held = tensor.element_size(), tensor.detach().resolve_conj().resolve_neg()
    if not held.dim():
        held, steps = held.reshape(1), (0,)
    if width == 16:  # two words for each element
        held, first, steps = torch.view_as_real(held), 2 * first, (*(2 * step for step in steps), 1)
    low, high = 0, 0
    rows = max(1, _CHUNK_ELEMENTS // max(1, math.prod(held.shape[1:])))
    for at in range(0, len(held), rows):
        chunk = held[at : at + rows].contiguous()
        chunk_low, chunk_high = _sums(chunk.view(_WORDS[width]), first + at * steps[0], steps, width)
        low, high = low + chunk_low, high + chunk_high
    return low % (1 << 64), high % (1 << 64)


def _sums(words: torch.Tensor, first: int, steps: Sequence[int], width: int) -> tuple[int, int]:
    bits = words.to(torch.int64)
    if width < 8:
        bits &= (1 << 8 * width) - 1
    index = torch.tensor(_signed(first), device=words.device)
    for extent, step in zip(words.shape, steps, strict=True):
        index = index.unsqueeze(-1) + torch.arange(extent, dtype=torch.int64, device=words.device) * step
    z = (bits ^ (index * _INDEX_KEY)) * _M1
    z ^= (z >> 32) & _LOW_HALF
    z *= _M2
    products = (z & _LOW_HALF) * ((z >> 32) & _LOW_HALF)
    return int(z.sum()), int(products.sum())


def _signed(value: int) -> int:
    return (value + (1 << 63)) % (1 << 64) - (1 << 63)
