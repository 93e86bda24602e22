"""Laws of the CUDA kernels: digests equal the reference, packed bytes equal torch's copies, rounding equals its casts.

They need a CUDA device, or triton and TRITON_INTERPRET=1 with a numpy that triton's interpreter can work with.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from everstep import native
from everstep.native import gpu, reference

INTERPRETED = find_spec("triton") is not None and os.environ.get("TRITON_INTERPRET") == "1"
DEVICE = "cpu" if INTERPRETED else "cuda"
DTYPES = [torch.bool, torch.uint8, torch.float8_e4m3fn, torch.bfloat16, torch.int16, torch.float32, torch.int32,
          torch.float64, torch.int64, torch.complex64, torch.complex128]  # fmt: skip
LENGTHS = [0, 1, 3, 31, 32, 33, 1001, 65537, (1 << 22) + 5]
LOWER_HALVES = [0x0000, 0x0001, 0x7FFF, 0x8000, 0x8001, 0xFFFF]


def on_device(test: Callable[..., None]) -> Callable[..., None]:
    return test if INTERPRETED else pytest.mark.gpu(test)


def on_cuda(test: Callable[..., None]) -> Callable[..., None]:
    return pytest.mark.gpu(test)


def random_bits(count: int, dtype: torch.dtype, seed: int = 0, shift: int = 0) -> torch.Tensor:
    """`count` elements of random bits that begin `shift` elements after an aligned address."""
    generator = torch.Generator().manual_seed(seed)
    high = 2 if dtype is torch.bool else 256
    size = (shift + count) * dtype.itemsize
    memory = torch.randint(0, high, (size,), dtype=torch.uint8, generator=generator).to(DEVICE)
    return memory[shift * dtype.itemsize :].view(dtype)


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    return torch.equal(*(x.contiguous().reshape(-1).view(torch.uint8) for x in (a, b)))


def native_digest(tensor: torch.Tensor) -> tuple[int, int]:
    held = tensor.cpu().contiguous()
    return native.digest([held.data_ptr()], [held.numel()], [held.element_size()], [0], 2)[0]


mixtures = st.lists(st.tuples(st.integers(0, 9000), st.sampled_from(DTYPES), st.integers(0, 9)), min_size=1, max_size=9)


def mixed(kinds: list[tuple[int, torch.dtype, int]]) -> list[torch.Tensor]:
    return [random_bits(count, dtype, seed, shift) for seed, (count, dtype, shift) in enumerate(kinds)]


@on_device
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_digests_equal_the_reference_and_the_native_ones(dtype: torch.dtype) -> None:
    tensors = [random_bits(count, dtype, count) for count in LENGTHS]
    found = gpu.pairs(gpu.digests(tensors))
    assert found == [reference.digest(tensor) for tensor in tensors]
    assert found == [native_digest(tensor) for tensor in tensors]


@on_device
@settings(max_examples=40, deadline=None)
@given(mixtures)
def test_widths_and_alignments_mix(kinds: list[tuple[int, torch.dtype, int]]) -> None:
    tensors = mixed(kinds)
    assert gpu.pairs(gpu.digests(tensors)) == [reference.digest(tensor) for tensor in tensors]


@on_device
def test_many_tensors_do_not_disturb_each_other() -> None:
    tensors = [random_bits(count * 37 % 3001, torch.float32, count) for count in range(600)]
    assert gpu.pairs(gpu.digests(tensors)) == [reference.digest(tensor) for tensor in tensors]


@on_device
def test_digests_read_any_layout_in_row_major_order() -> None:
    tensor = random_bits(60, torch.float32).view(3, 4, 5)
    numbers = torch.randn(9, dtype=torch.complex64, device=DEVICE)
    views = [tensor.permute(2, 0, 1), tensor[:, ::2], tensor[1, 2, 3], tensor.expand(2, 3, 4, 5)]
    views += [numbers.conj(), numbers.conj().imag, numbers[:1].conj().imag]
    expected = [reference.digest(view) for view in views]
    assert gpu.pairs(gpu.digests(views)) == expected
    assert [gpu.pairs(gpu.digests([view]))[0] for view in views] == expected


def test_nothing_has_no_digests() -> None:
    assert gpu.pairs(gpu.digests([])) == []


CHANGES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "nothing": lambda tensor: tensor,
    "contents": lambda tensor: tensor.zero_(),
    "address": lambda tensor: tensor.clone(),
    "length": lambda tensor: tensor[:30],
    "width": lambda tensor: tensor.view(torch.float32)[:32, :8],
    "order": lambda tensor: tensor.t(),
    "conjugation": lambda tensor: tensor.conj(),
    "negation": lambda tensor: torch._neg_view(tensor),
}


@on_device
@pytest.mark.parametrize("change", CHANGES)
def test_a_kept_table_sees_what_changed(change: str) -> None:
    tensors = [random_bits(1024, torch.complex64).view(32, 32), random_bits(77, torch.int16)]
    table = gpu.Table()
    gpu.digests(tensors, table)
    tensors[0] = CHANGES[change](tensors[0])
    for _ in range(2):
        assert gpu.pairs(gpu.digests(tensors, table)) == [reference.digest(tensor) for tensor in tensors]


def test_a_kept_table_is_made_once_for_tensors_that_stay() -> None:
    tensors, places = [torch.zeros(5), torch.zeros(3, dtype=torch.int16)], [0, 64]
    table = gpu.Table()
    assert table.hold(tensors, places, 64) is tensors
    made = table.launches
    assert table.hold(tensors, places, 64) is tensors
    assert table.launches is made
    places[1] = 128
    table.hold(tensors, places, 64)
    assert table.launches is not made


def upper_halves(low: int) -> torch.Tensor:
    """All float32 whose lower half is `low`: both zeros, subnormals, infinities, and NaNs of every payload."""
    bits = (torch.arange(1 << 16, dtype=torch.int64) << 16) | low
    return bits.to(torch.int32).view(torch.float32).to(DEVICE)


def cast(gradient: torch.Tensor) -> torch.Tensor:
    rounded = gradient.to(torch.bfloat16)
    if DEVICE == "cpu":  # torch's own casts of NaN differ between devices; the kernels follow CUDA's
        rounded.view(torch.int16)[gradient.isnan()] = 0x7FFF
    return rounded


def check_rounding(gradients: list[torch.Tensor], gap: int = 0) -> None:
    places, end = [], 32 * gap
    for gradient in gradients:
        places.append(end)
        end += -(-gradient.numel() // 32) * 32 + 32 * gap
    flat = torch.full((end,), -1, dtype=torch.int16, device=DEVICE).view(torch.bfloat16)
    expected = flat.clone()
    values = [cast(gradient) for gradient in gradients]
    for place, value in zip(places, values, strict=True):
        expected[place : place + value.numel()] = value.reshape(-1)
    gpu.round_pack(gradients, flat, places)
    assert same_bits(flat, expected)
    for gradient, value in zip(gradients, values, strict=True):
        assert same_bits(gradient, (value.view(torch.int16).to(torch.int32) << 16).view(torch.float32))


@on_device
@pytest.mark.parametrize("low", LOWER_HALVES, ids=hex)
def test_rounding_is_the_cast_of_torch(low: int) -> None:
    check_rounding([upper_halves(low)])


@on_device
def test_rounding_is_the_cast_of_torch_among_neighbours() -> None:
    """A thread's neighbours are written back together: some of them change, some do not."""
    check_rounding([torch.stack([upper_halves(low) for low in LOWER_HALVES], 1).reshape(-1)])


@on_device
@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 9000), st.integers(0, 5)), min_size=1, max_size=8), st.integers(0, 2))
def test_rounded_gradients_arrive_and_nothing_else_is_touched(kinds: list[tuple[int, int]], gap: int) -> None:
    check_rounding(mixed([(count, torch.float32, shift) for count, shift in kinds]), gap)


@on_device
@pytest.mark.parametrize("count", LENGTHS)
def test_rounding_keeps_within_its_gradient(count: int) -> None:
    memory = random_bits(count + 64, torch.float32)
    before = memory.clone()
    check_rounding([memory[32 : 32 + count]], gap=1)
    assert same_bits(memory[:32], before[:32])
    assert same_bits(memory[32 + count :], before[32 + count :])


@on_device
def test_gradients_in_another_order_are_rounded_too() -> None:
    check_rounding([random_bits(60, torch.float32).view(3, 4, 5).permute(2, 0, 1), random_bits(9, torch.float32)])


def check_packing(tensors: list[torch.Tensor], gap: int = 0) -> None:
    places, end = [], 64 * gap
    for tensor in tensors:
        places.append(end)
        end += -(-tensor.numel() * tensor.element_size() // 64) * 64 + 64 * gap
    flat = torch.full((end,), 255, dtype=torch.uint8, device=DEVICE)
    expected = flat.clone()
    for place, tensor in zip(places, tensors, strict=True):
        held = tensor.resolve_conj().resolve_neg().contiguous().reshape(-1).view(torch.uint8)
        expected[place : place + held.numel()] = held
    gpu.pack(tensors, flat, places)
    assert torch.equal(flat, expected)


@on_device
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_packed_bytes_are_the_bytes(dtype: torch.dtype) -> None:
    check_packing([random_bits(count, dtype, count) for count in LENGTHS], gap=1)


@on_device
@settings(max_examples=40, deadline=None)
@given(mixtures, st.integers(0, 2))
def test_packed_bytes_arrive_and_nothing_else_is_touched(kinds: list[tuple[int, torch.dtype, int]], gap: int) -> None:
    check_packing(mixed(kinds), gap)


@on_device
def test_packing_reads_any_layout_in_row_major_order() -> None:
    tensor, numbers = random_bits(60, torch.float32).view(3, 4, 5), random_bits(9, torch.complex64)
    check_packing([tensor.permute(2, 0, 1), tensor[:, ::2], numbers.conj(), numbers.conj().imag])


@on_device
def test_a_table_serves_alternating_targets() -> None:
    tensors, table = [random_bits(1000, torch.float32)], gpu.Table()
    targets = [torch.zeros(4096, dtype=torch.uint8, device=DEVICE) for _ in range(2)]
    for target in targets:
        gpu.pack(tensors, target, [64], table)
        assert same_bits(target[64:4064], tensors[0])


@on_cuda
@pytest.mark.filterwarnings("ignore:Synchronization debug mode")
def test_nothing_waits_for_the_device() -> None:
    tensors, table = [random_bits(100_000, torch.float32, seed) for seed in range(20)], gpu.Table()
    places = list(range(0, 20 * 100_032, 100_032))
    halves = torch.zeros(20 * 100_032, dtype=torch.bfloat16, device=DEVICE)
    flat = torch.zeros(20 * 4 * 100_032, dtype=torch.uint8, device=DEVICE)
    torch.cuda.set_sync_debug_mode("error")
    try:
        for _ in range(2):
            gpu.digests(tensors, table)
            gpu.round_pack(tensors, halves, places)
            gpu.pack(tensors, flat, [4 * place for place in places])
    finally:
        torch.cuda.set_sync_debug_mode("default")


@on_cuda
def test_a_table_follows_its_stream() -> None:
    tensors, table = [random_bits(1 << 20, torch.float32)], gpu.Table()
    expected = [reference.digest(tensors[0])]
    torch.cuda.synchronize()
    for _ in range(3):
        with torch.cuda.stream(torch.cuda.Stream()):
            assert gpu.pairs(gpu.digests(tensors, table)) == expected


F32, BF16, U8 = torch.float32, torch.bfloat16, torch.uint8


@pytest.mark.parametrize(
    ("call", "tensors", "flat", "places", "message"),
    [
        (gpu.round_pack, [torch.zeros(4)], torch.zeros(8, dtype=BF16), [0, 32], "2 places for 1 tensors"),
        (gpu.round_pack, [torch.zeros(4)], torch.zeros(64, dtype=BF16), [16], "multiples of 32"),
        (gpu.round_pack, [torch.zeros(4)], torch.zeros(64, dtype=BF16), [-32], "multiples of 32"),
        (gpu.round_pack, [torch.zeros(4)], torch.zeros(35, dtype=BF16), [32], "ends at 36"),
        (gpu.round_pack, [torch.zeros(4)], torch.zeros(64, dtype=F32), [0], "torch.bfloat16"),
        (gpu.round_pack, [torch.zeros(4, dtype=BF16)], torch.zeros(64, dtype=BF16), [0], "float32 gradients"),
        (gpu.pack, [torch.zeros(4)], torch.zeros(79, dtype=U8), [64], "ends at 80"),
        (gpu.pack, [torch.zeros(4)], torch.zeros(99, dtype=U8), [32], "multiples of 64"),
        (gpu.pack, [torch.zeros(4)], torch.zeros(160, dtype=U8)[::2], [0], "contiguous"),
        (gpu.pack, [torch.zeros(4)], torch.zeros(99, dtype=U8)[1:], [0], "aligned"),
        (gpu.pack, [torch.zeros(4), torch.zeros(4, device="meta")], torch.zeros(99, dtype=U8), [0, 64], "one device"),
    ],
)
def test_wrong_targets_and_places_are_refused(
    call: Callable[..., None], tensors: list[Any], flat: torch.Tensor, places: list[int], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        call(tensors, flat, places)


def test_the_module_imports_without_triton() -> None:
    code = "import sys; sys.modules['triton'] = None; import everstep.native.gpu"
    subprocess.run([sys.executable, "-c", code], check=True, env={"PYTHONPATH": ":".join(sys.path)})
