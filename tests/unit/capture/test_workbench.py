"""What is packed in parts is the same in the end, and no part is larger than the workbench."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from everstep.capture.workbench import Load, parts
from everstep.types import padded


def loaded(counts: list[int], itemsize: int) -> Load:
    """Float32 tensors that have `itemsize` bytes an element where they go."""
    sizes = [count * itemsize for count in counts]
    places = [sum(map(padded, sizes[:at])) for at in range(len(sizes))]
    return Load([torch.arange(count, dtype=torch.float32) for count in counts], places, sizes)


@given(
    counts=st.lists(st.integers(0, 700), max_size=12),
    itemsize=st.sampled_from([2, 4]),
    room=st.integers(1, 30).map(lambda units: 64 * units),
)
def test_every_element_goes_where_it_would_have_gone(counts: list[int], itemsize: int, room: int) -> None:
    load = loaded(counts, itemsize)
    wanted = {
        place + itemsize * at: tensor[at].item()
        for tensor, place in zip(load.tensors, load.places, strict=True)
        for at in range(tensor.numel())
    }
    found: dict[int, float] = {}
    for part in parts(load, room):
        assert part.packed[1] <= room
        for tensor, place, size in zip(part.tensors, part.places, part.sizes, strict=True):
            assert size == itemsize * tensor.numel()
            found |= {place + itemsize * at: value for at, value in enumerate(tensor.tolist())}
    assert found == wanted


def test_what_is_written_to_a_part_is_written_to_the_tensor() -> None:
    """Gradients are rounded where they lie, as well."""
    load = loaded([100, 5], 2)
    for part in parts(load, 64):
        for tensor in part.tensors:
            tensor.fill_(7.0)
    assert all((tensor == 7.0).all() for tensor in load.tensors)


def test_a_tensor_whose_bytes_do_not_lie_in_order_is_a_part_of_its_own() -> None:
    turned = torch.zeros(40, 10).t()
    load = Load([torch.zeros(16), turned, torch.zeros(16)], [0, 64, 1664], [64, 1600, 64])
    assert [[tensor is turned for tensor in part.tensors] for part in parts(load, 640)] == [[False], [True], [False]]


@pytest.mark.parametrize("sizes", [[], [0], [64, 0, 64]])
def test_places_follow_each_other(sizes: list[int]) -> None:
    load = Load([torch.empty(0)] * len(sizes), [0] * len(sizes), sizes)
    assert load.packed == ([sum(sizes[:at]) for at in range(len(sizes))], sum(sizes))
