"""Laws of `gather`: every byte arrives, and no byte around it is touched."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from everstep.native import gather

MIB = 1 << 20


def check(sizes: list[int], gap: int, threads: int) -> None:
    sources = [torch.randint(0, 255, (size,), dtype=torch.uint8) for size in sizes]
    offsets = [gap + sum(sizes[:i]) + gap * i for i in range(len(sizes))]
    target = torch.full((gap + sum(sizes) + gap * len(sizes),), 255, dtype=torch.uint8)
    fence = torch.full((gap,), 255, dtype=torch.uint8)
    expected = torch.cat([fence, *(part for source in sources for part in (source, fence))])
    gather([s.data_ptr() for s in sources], sizes, target.data_ptr(), offsets, threads)
    assert torch.equal(target, expected)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(0, 5000), max_size=20), st.integers(0, 70), st.integers(1, 4))
def test_small_pieces_arrive(sizes: list[int], gap: int, threads: int) -> None:
    check(sizes, gap, threads)


@pytest.mark.parametrize("gap", [0, 1, 64])
@pytest.mark.parametrize(
    "sizes", [[3 * MIB + 5, 1, MIB], [33 * MIB + 7, 0, 63, 65, 2 * MIB]], ids=["cached", "uncached"]
)
def test_large_pieces_arrive(sizes: list[int], gap: int) -> None:
    check(sizes, gap, threads=2)


@pytest.mark.parametrize(
    ("sizes", "offsets", "threads", "message"),
    [
        ([], [0], 1, "sizes has 0 entries, expected 1"),
        ([0], [0, 0], 1, "offsets has 2 entries"),
        ([-1], [0], 1, "sizes holds a negative"),
        ([0], [-1], 1, "offsets holds a negative"),
        ([0], [0], 0, "threads"),
    ],
)
def test_wrong_lists_are_refused(sizes: list[int], offsets: list[int], threads: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        gather([0], sizes, 0, offsets, threads)
