"""Where a writer's tensor belongs in a program: only ever there, and nowhere once it has been brought."""

import itertools
import math

import pytest
import torch

from everstep.layout import boxes
from everstep.recover.wanted import Wanted
from everstep.types import Box, Local, boxed
from tests.unit.layout.meshes import LAYOUTS, POISON, SHAPES, Shape, filled, ranks, read

PAIRS = list(itertools.product(LAYOUTS, LAYOUTS))


def parts(name: str, shape: Shape) -> list[Local]:
    return [local for held in ranks(LAYOUTS[name](shape)) for local in held.values() if local.logical == "w"]


def wanted(held: Local, tensor: torch.Tensor) -> Wanted:
    return Wanted("w", tensor, held, [piece.box for piece in held.pieces])


@pytest.mark.parametrize(("source", "target"), PAIRS, ids=[f"{a} to {b}" for a, b in PAIRS])
def test_what_is_read_to_its_place_is_where_it_belongs(source: str, target: str) -> None:
    for shape in SHAPES:
        marker = torch.arange(math.prod(shape)).view(shape)
        for ours, theirs in itertools.product(parts(target, shape), parts(source, shape)):
            tensor = torch.full((math.prod(ours.shape),), POISON).view(ours.shape)
            place = wanted(ours, tensor).place(tensor, theirs)
            if place is None:
                continue
            assert place.is_contiguous()
            place.copy_(filled(theirs, marker)[: math.prod(theirs.shape)].view(place.shape))
            for piece in ours.pieces:
                found, right = read(piece, tensor.view(-1)), marker[boxes.slices(piece.box)]
                brought = torch.zeros(shape, dtype=torch.bool)
                for other in theirs.pieces:
                    brought[boxes.slices(other.box)] = True
                inside = brought[boxes.slices(piece.box)]
                assert torch.equal(found[inside], right[inside])
                assert (found[~inside] == POISON).all()


def box(low: tuple[int, ...], high: tuple[int, ...]) -> Local:
    return boxed("w", (8, 6), Box(low, high))


def test_rows_of_a_matrix_have_a_place_in_it() -> None:
    tensor = torch.zeros(4, 6)
    want = wanted(box((4, 0), (8, 6)), tensor)
    place = want.place(tensor, box((6, 0), (8, 6)))
    assert place is not None
    assert (place.data_ptr(), place.shape) == (tensor[2:].data_ptr(), (2, 6))


@pytest.mark.parametrize(
    "theirs", [box((0, 0), (4, 6)), box((3, 0), (5, 6)), box((4, 0), (8, 3))], ids=["elsewhere", "across", "columns"]
)
def test_what_does_not_lie_there_in_one_piece_has_none(theirs: Local) -> None:
    tensor = torch.zeros(4, 6)
    assert wanted(box((4, 0), (8, 6)), tensor).place(tensor, theirs) is None


def test_what_another_has_brought_is_not_read_again() -> None:
    tensor = torch.zeros(8, 6)
    want = wanted(box((0, 0), (8, 6)), tensor)
    want.absent = [Box((4, 0), (8, 6))]
    assert not want.meets(box((0, 0), (4, 6)))
    assert want.place(tensor, box((2, 0), (6, 6))) is None
    assert want.place(tensor, box((4, 0), (8, 6))) is not None


def test_room_for_padding_is_zeros() -> None:
    flat = Local("w", (5,), (4,), boxed("w", (5,), Box((2,), (5,))).pieces)
    room = wanted(flat, torch.ones(4)).room("main", "exp_avg", torch.float64)
    assert room.dtype == torch.float64
    assert room.tolist() == [0.0] * 4
