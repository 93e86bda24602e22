"""From every layout to every other, by what a resume goes by: each element arrives where it belongs, is read once, and
padding stays alone.
"""

import itertools
import math

import pytest
import torch

from everstep.layout import boxes
from everstep.layout.owners import order, read_from
from everstep.recover.parts import boxes_of, copy
from everstep.recover.wanted import Wanted
from everstep.types import Box, Local
from tests.unit.layout.meshes import LAYOUTS, POISON, SHAPES, Shape, filled, part, ranks, read

PAIRS = list(itertools.product(LAYOUTS, LAYOUTS))
Writer = list[tuple[Local, torch.Tensor]]
"""What a rank holds of the tensor `w`, and its buffers."""


def marker_of(shape: Shape) -> torch.Tensor:
    return torch.arange(math.prod(shape)).view(shape)


def writers(layout: str, shape: Shape) -> list[Writer]:
    return [
        [
            (local, filled(local, marker_of(shape))[: math.prod(local.shape)].view(local.shape))
            for local in rank.values() if local.logical == "w"
        ]
        for rank in ranks(LAYOUTS[layout](shape))
    ]  # fmt: skip


def held(writer: Writer) -> dict[str, list[Box]]:
    return boxes_of({str(at): local for at, (local, _) in enumerate(writer)})


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("name", LAYOUTS)
def test_together_the_ranks_hold_everything(name: str, shape: Shape) -> None:
    there = [box for writer in writers(name, shape) for box in held(writer).get("w", ())]
    assert not boxes.missing(Box((0,) * len(shape), shape), there)


@pytest.mark.parametrize(("source", "target"), PAIRS, ids=[f"{a} to {b}" for a, b in PAIRS])
def test_every_layout_becomes_every_other(source: str, target: str) -> None:
    for shape in SHAPES:
        known, wanting = writers(source, shape), writers(target, shape)
        for rank, program in enumerate(wanting):
            there = list(map(held, known))
            used, absent = read_from(held(program), there.__getitem__, order(rank, len(wanting), len(known)))
            assert not absent
            for local, expected in program:
                buffer = torch.full_like(expected, POISON)
                want, moved = Wanted("w", buffer, local, [piece.box for piece in local.pieces]), 0
                for theirs, values in (one for at in used for one in known[at]):
                    moves = want.take(theirs)
                    copy(values, theirs, buffer, local, moves)
                    moved += sum(boxes.volume(move.box) for move in moves)
                assert not want.absent
                assert moved == sum(boxes.volume(piece.box) for piece in local.pieces)  # no element twice
                assert torch.equal(buffer, expected)
                for piece in local.pieces:
                    assert torch.equal(read(piece, buffer), part(marker_of(shape), piece))


def test_what_nobody_holds_is_named() -> None:
    shape = (6, 4)
    known, (program,) = writers("fsdp 4", shape), writers("single", shape)
    _, absent = read_from(held(program), lambda at: held(known[at]), range(2))
    (lost,) = held(known[2])["w"]
    assert absent == {"w": [lost]}
