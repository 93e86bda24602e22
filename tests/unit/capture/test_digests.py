"""A digest depends on the values in their logical order and on nothing else."""

from collections.abc import Sequence

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from everstep import native
from everstep.capture.digests import digest, digest_at, total
from everstep.capture.mover import HostMover, Parcel, offsets
from everstep.capture.tensors import DTYPES, describe, to_bytes, view
from everstep.layout import boxes
from everstep.native import reference
from everstep.store import memory
from everstep.types import Box, Pair

GENERATOR = torch.Generator().manual_seed(11)
PLAIN = torch.randint(0, 256, (6, 10, 32), dtype=torch.uint8, generator=GENERATOR)
ODD: dict[str, torch.Tensor] = {
    "transposed": torch.arange(12.0).reshape(3, 4).t(),
    "sliced": torch.arange(100.0)[3:90:7],
    "expanded": torch.ones(1, 3).expand(4, 3),
    "conjugate": torch.tensor([1 + 2j, 3 - 1j]).conj(),
    "negative": torch.tensor([1 + 2j, 3 - 1j]).conj().imag,
    "complex128": torch.tensor([1 + 2j], dtype=torch.complex128),
    "bool": torch.tensor([True, False, True]),
    "empty": torch.empty(0),
    "empty with axes": torch.empty(3, 0, 2),
    "scalar": torch.tensor(3.5),
    "channels last": torch.arange(48.0).reshape(2, 2, 3, 4).contiguous(memory_format=torch.channels_last),
    "needs grad": torch.nn.Parameter(torch.ones(3)),
    "unaligned": torch.arange(9, dtype=torch.uint8)[1:],
}


@pytest.mark.parametrize("name", ODD)
def test_it_is_the_reference_s_whatever_the_strides(name: str) -> None:
    tensor = ODD[name].detach()
    plain = tensor.resolve_conj().resolve_neg().clone(memory_format=torch.contiguous_format)
    assert digest([ODD[name]]) == [reference.digest(plain)] == digest([plain])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_it_is_the_reference_s_for_every_element_type(dtype: torch.dtype) -> None:
    tensor = PLAIN.reshape(-1).view(dtype) if dtype != torch.bool else PLAIN > 99
    assert digest([tensor]) == [reference.digest(tensor)]


@settings(deadline=None, max_examples=60, print_blob=True)
@given(st.sampled_from([torch.uint8, torch.int16, torch.float32, torch.float64, torch.complex128]), st.data())
def test_parts_add_up_to_the_whole_wherever_it_is_cut(dtype: torch.dtype, data: st.DataObject) -> None:
    whole = PLAIN.reshape(-1).view(dtype)
    cuts = sorted(data.draw(st.lists(st.integers(0, whole.numel()), max_size=5)))
    low = high = 0
    for start, end in zip([0, *cuts], [*cuts, whole.numel()], strict=True):
        part = whole[start:end]
        pair = native.digest([part.data_ptr()], [part.numel()], [part.element_size()], [start], 2)[0]
        low, high = low + pair[0], high + pair[1]
    assert digest([whole]) == [(low % (1 << 64), high % (1 << 64))]


@pytest.mark.parametrize("threads", [1, 2, 7])
def test_the_number_of_threads_does_not_matter(threads: int) -> None:
    assert digest([PLAIN, ODD["bool"]], threads=threads) == digest([PLAIN, ODD["bool"]])


@settings(deadline=None, max_examples=200, print_blob=True)
@given(st.integers(0, PLAIN.numel() * 8 - 1))
def test_every_flipped_bit_changes_it(bit: int) -> None:
    changed = PLAIN.reshape(-1).clone()
    changed[bit // 8] ^= 1 << bit % 8
    assert digest([changed]) != digest([PLAIN])


def test_two_elements_exchanged_change_it() -> None:
    assert digest([torch.tensor([1.0, 2.0])]) != digest([torch.tensor([2.0, 1.0])])


@pytest.mark.parametrize("name", ODD)
def test_bytes_are_in_logical_order_and_come_back(name: str) -> None:
    tensor = ODD[name]
    found = view(memoryview(bytearray(to_bytes(tensor))), describe("x", tensor))
    assert torch.equal(found, tensor)


def test_a_block_holds_every_tensor_aligned_with_zeros_between() -> None:
    tensors = list(ODD.values())
    described = [describe(name, tensor) for name, tensor in ODD.items()]
    places, nbytes = offsets(described)
    assert all(place % 64 == 0 for place in places)
    block = memory.create("test", nbytes, present=False)
    block.memory[:] = b"\xff" * block.nbytes
    HostMover().copy(block, Parcel(described, places, tensors))
    used = bytearray(block.memory[:nbytes])
    block.close()
    for place, told, tensor in zip(places, described, tensors, strict=True):
        assert bytes(used[place : place + told.nbytes]) == to_bytes(tensor)
        used[place : place + told.nbytes] = bytes(told.nbytes)
    assert not any(used)


def of_box(part: torch.Tensor, box: Box, shape: Sequence[int]) -> Pair:
    """What a box adds to the digest of a whole tensor of this shape."""
    steps = boxes.strides(tuple(shape))
    return digest_at(part, sum(low * step for low, step in zip(box.low, steps, strict=True)), steps)


@settings(deadline=None, max_examples=120, print_blob=True)
@given(
    st.sampled_from([torch.uint8, torch.float32, torch.float64, torch.complex128]),
    st.lists(st.integers(1, 6), min_size=0, max_size=4),
    st.data(),
)
def test_boxes_add_up_to_the_whole_however_it_is_cut(dtype: torch.dtype, shape: list[int], data: st.DataObject) -> None:
    whole = torch.arange(float(torch.Size(shape).numel()) or 1.0).reshape(shape).to(dtype)
    parts = [Box((0,) * len(shape), tuple(shape))]
    for _ in range(data.draw(st.integers(0, 4)) if shape else 0):
        box = parts.pop(data.draw(st.integers(0, len(parts) - 1)))
        axis = data.draw(st.integers(0, len(shape) - 1))
        at = data.draw(st.integers(box.low[axis], box.high[axis]))
        cut = (*box.high[:axis], at, *box.high[axis + 1 :]), (*box.low[:axis], at, *box.low[axis + 1 :])
        parts += [part for part in (Box(box.low, cut[0]), Box(cut[1], box.high)) if 0 not in part.shape]
    pieces = [whole[tuple(slice(lo, h) for lo, h in zip(box.low, box.high, strict=True))] for box in parts]
    assert digest([whole]) == [total([of_box(p, box, shape) for p, box in zip(pieces, parts, strict=True)])]


def test_an_element_in_another_place_of_the_whole_is_seen() -> None:
    part = torch.arange(6.0).reshape(2, 3)
    here, there = Box((0, 0), (2, 3)), Box((0, 1), (2, 4))
    assert of_box(part, here, (4, 5)) != of_box(part, there, (4, 5))
    assert of_box(part, here, (4, 5)) != of_box(part.flip(0), here, (4, 5))


@settings(deadline=None, max_examples=150, print_blob=True)
@given(st.sampled_from([torch.uint8, torch.bfloat16, torch.float32, torch.float64, torch.complex128]), st.data())
def test_a_part_that_lies_anyhow_has_the_reference_s_digest(dtype: torch.dtype, data: st.DataObject) -> None:
    shape = data.draw(st.lists(st.integers(0, 5), min_size=0, max_size=3))
    steps = [data.draw(st.integers(0, 1 << 40)) for _ in shape]
    first = data.draw(st.integers(0, (1 << 62)))
    whole = torch.randn([2 * extent for extent in shape], generator=GENERATOR).mul(50).to(dtype)
    part = whole[tuple(slice(0, None, 2) for _ in shape)]
    part = part.movedim(0, -1) if part.dim() > 1 and data.draw(st.booleans()) else part
    assert digest_at(part, first, steps) == reference.digest_at(part, first, steps)


def test_chunks_of_the_reference_add_up(monkeypatch: pytest.MonkeyPatch) -> None:
    part = torch.randn(7, 5, 3, generator=GENERATOR)
    known = reference.digest_at(part, 9, (100, 7, 2))
    monkeypatch.setattr(reference, "_CHUNK_ELEMENTS", 4)
    assert reference.digest_at(part, 9, (100, 7, 2)) == known == digest_at(part, 9, (100, 7, 2))
