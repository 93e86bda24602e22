"""Memory that one part after the other is read to."""

import torch

from everstep.recover import rooms as module
from everstep.recover.rooms import Rooms
from everstep.types import Box, Tensor


def described(*shape: int, dtype: str = "F32") -> Tensor:
    count = 1
    for extent in shape:
        count *= extent
    box = Box((0,) * len(shape), shape)
    return Tensor("w", dtype, shape, box, count * (4 if dtype == "F32" else 2))


def test_what_is_taken_does_not_overlap() -> None:
    rooms = Rooms()
    taken = [rooms.take(described(3, 5)), rooms.take(described(7, dtype="BF16")), rooms.take(described(2, 2))]
    for at, tensor in enumerate(taken):
        tensor.fill_(at)
    assert [set(tensor.flatten().tolist()) for tensor in taken] == [{0.0}, {1.0}, {2.0}]
    assert [tuple(tensor.shape) for tensor in taken] == [(3, 5), (7,), (2, 2)]
    assert taken[1].dtype is torch.bfloat16


def test_the_next_part_gets_the_same_memory() -> None:
    rooms = Rooms()
    first = rooms.take(described(4, 4))
    rooms.begin()
    assert rooms.take(described(4, 4)).data_ptr() == first.data_ptr()


def test_a_tensor_larger_than_a_block_has_one_of_its_own() -> None:
    rooms, large = Rooms(), described(module.BLOCK_BYTES // 4 + 1)
    small, huge = rooms.take(described(2)), rooms.take(large)
    small.fill_(1)
    huge.fill_(2)
    assert small.tolist() == [1, 1]
    assert huge.numel() == large.box.shape[0]
