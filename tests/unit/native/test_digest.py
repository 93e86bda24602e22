"""Laws of `digest`: equal to the reference on every dtype, indifferent to cuts, sensitive to every bit and place."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from everstep.native import digest, reference

U64 = 1 << 64
DTYPES = [
    torch.bool,
    torch.uint8,
    torch.int8,
    torch.float16,
    torch.bfloat16,
    torch.int16,
    torch.float32,
    torch.int32,
    torch.float64,
    torch.int64,
    torch.complex64,
    torch.complex128,
    torch.float8_e4m3fn,
]


def random_bits(count: int, dtype: torch.dtype, seed: int = 0) -> torch.Tensor:
    size = torch.empty((), dtype=dtype).element_size()
    generator = torch.Generator().manual_seed(seed)
    high = 2 if dtype == torch.bool else 256
    return torch.randint(0, high, (count * size,), dtype=torch.uint8, generator=generator).view(dtype)


def native(tensors: list[torch.Tensor], starts: list[int] | None = None, threads: int = 2) -> list[tuple[int, int]]:
    return digest(
        [t.data_ptr() for t in tensors],
        [t.numel() for t in tensors],
        [t.element_size() for t in tensors],
        starts or [0] * len(tensors),
        threads,
    )


def by_definition(words: list[int], start: int) -> tuple[int, int]:
    """The definition in integers, without a vector in sight."""
    low = high = 0
    for i, word in enumerate(words, start):
        z = (word ^ (i * 0x9E3779B97F4A7C15) % U64) * 0xBF58476D1CE4E5B9 % U64
        z = (z ^ (z >> 32)) * 0x94D049BB133111EB % U64
        low, high = low + z, high + (z & 0xFFFFFFFF) * (z >> 32)
    return low % U64, high % U64


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("count", [0, 1, 3, 17, 1001])
def test_kernels_and_reference_agree(kernel_set: str, dtype: torch.dtype, count: int) -> None:
    tensor = random_bits(count, dtype)
    assert native([tensor], [5]) == [reference.digest(tensor, 5)]


@given(st.lists(st.integers(0, U64 - 1), max_size=40), st.integers(0, U64 - 1))
def test_the_reference_is_the_definition(words: list[int], start: int) -> None:
    tensor = torch.tensor([w - U64 if w >= U64 // 2 else w for w in words], dtype=torch.int64)
    assert reference.digest(tensor, start) == by_definition(words, start) == native([tensor], [start])[0]


@pytest.mark.parametrize("width", [1, 2, 4, 8, 16])
def test_golden(width: int) -> None:
    tensor = torch.arange(96, dtype=torch.uint8)
    golden = {1: GOLDEN_1, 2: GOLDEN_2, 4: GOLDEN_4, 8: GOLDEN_8, 16: GOLDEN_8}
    assert digest([tensor.data_ptr()], [96 // width], [width], [0], 1) == [golden[width]]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.complex128], ids=str)
@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(0, 3000), max_size=5))
def test_parts_add_up_to_the_whole(dtype: torch.dtype, cuts: list[int]) -> None:
    tensor = random_bits(3000, dtype)
    edges = [0, *sorted(cuts), 3000]
    spans = list(pairwise(edges))
    parts = native([tensor[a:b] for a, b in spans], [a for a, _ in spans])
    assert (sum(low for low, _ in parts) % U64, sum(high for _, high in parts) % U64) == native([tensor])[0]


def test_threads_and_company_change_nothing() -> None:
    tensors = [random_bits(n, torch.float32, n) for n in (0, 1, 70_000, 300_001, *range(64))]
    expected = [reference.digest(t) for t in tensors]
    for threads in (1, 2, 3):
        assert native(tensors, threads=threads) == expected


def test_a_forked_child_does_not_wait_for_threads_it_has_not() -> None:
    tensor = random_bits(1_000_000, torch.float32)
    expected = native([tensor])  # starts the parent's threads
    child = os.fork()
    if child == 0:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)  # pytest-timeout's would wait for Python to run again
        signal.alarm(20)
        os._exit(0 if native([tensor]) == expected else 1)
    assert os.waitpid(child, 0)[1] == 0


@given(st.integers(0, 999), st.integers(0, 31))
def test_one_flipped_bit_changes_both_sums(index: int, bit: int) -> None:
    tensor = random_bits(1000, torch.int32)
    before = native([tensor])[0]
    tensor[index] ^= (1 << bit) if bit < 31 else -(1 << 31)
    after = native([tensor])[0]
    assert before[0] != after[0]
    assert before[1] != after[1]


def test_swapped_elements_and_shifted_zeros_are_seen() -> None:
    tensor = random_bits(1000, torch.float32)
    swapped = tensor.clone()
    swapped[[3, 700]] = swapped[[700, 3]]
    assert native([tensor]) != native([swapped])
    assert native([torch.zeros(10)]) != native([torch.zeros(11)])


def test_the_reference_reads_any_layout_in_row_major_order() -> None:
    tensor = random_bits(60, torch.float32).view(3, 4, 5)
    for view in (tensor.permute(2, 0, 1), tensor[:, ::2], tensor[1, 2, 3], tensor.expand(2, 3, 4, 5)):
        assert reference.digest(view) == native([view.contiguous()])[0]
    values = torch.randn(9, dtype=torch.complex64)
    assert reference.digest(values.conj()) == native([values.conj().resolve_conj()])[0]


def test_the_reference_works_in_bounded_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    tensor = random_bits(1000, torch.complex128)
    whole = reference.digest(tensor, 9)
    monkeypatch.setattr(reference, "_CHUNK_ELEMENTS", 64)
    assert reference.digest(tensor, 9) == whole


@pytest.mark.parametrize(
    ("counts", "widths", "starts", "threads", "message"),
    [
        ([1, 1], [4], [0], 1, "counts has 2 entries, expected 1"),
        ([1], [], [0], 1, "widths has 0 entries"),
        ([1], [4], [0, 0], 1, "starts has 2 entries"),
        ([1], [3], [0], 1, "width 3"),
        ([-1], [4], [0], 1, "negative"),
        ([1], [4], [0], 0, "threads"),
    ],
)
def test_wrong_lists_are_refused(
    counts: list[int], widths: list[int], starts: list[int], threads: int, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        digest([0], counts, widths, starts, threads)


def test_the_package_imports_neither_torch_nor_numpy() -> None:
    code = "import sys, everstep.native; sys.exit(bool({'torch', 'numpy'} & set(sys.modules)))"
    subprocess.run([sys.executable, "-c", code], check=True, env={"PYTHONPATH": ":".join(sys.path)})


GOLDEN_1 = (0xE10DDF3269AB8613, 0x9F99BA655B006123)
GOLDEN_2 = (0xA03403C672D62C7E, 0xC2827E53453C3725)
GOLDEN_4 = (0xFD3B5E656A7FF3F6, 0xD56C2019FEE97408)
GOLDEN_8 = (0x2AFDE569F61C5A54, 0x2D65F50BA2717E2A)
