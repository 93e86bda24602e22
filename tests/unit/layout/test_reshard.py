"""From every layout to every other: each element arrives where it belongs, is read once, and padding stays alone."""

import itertools
import math

import pytest
import torch

from everstep.layout import boxes
from everstep.layout.plan import Saved
from everstep.types import Box
from tests.unit.layout.meshes import LAYOUTS, SHAPES, Case, Shape, filled, part, performed, ranks, read

PAIRS = list(itertools.product(LAYOUTS, LAYOUTS))


def marker_of(shape: Shape) -> torch.Tensor:
    return torch.arange(math.prod(shape)).view(shape)


def saved(case: Case, shape: Shape) -> list[tuple[Box, torch.Tensor]]:
    """What all ranks write of the tensor `w`, as boxes in row-major order: each what none before it has written."""
    marker = marker_of(shape)
    written: list[tuple[Box, torch.Tensor]] = []
    for local in (local for rank in ranks(case) for local in rank.values() if local.logical == "w"):
        for piece in local.pieces:
            values = read(piece, filled(local, marker))
            rest = boxes.missing(piece.box, [known for known, _ in written])
            written += [(box, values[boxes.slices(box, piece.box)].reshape(-1)) for box in rest]
    return written


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("name", LAYOUTS)
def test_together_the_ranks_write_everything_once(name: str, shape: Shape) -> None:
    written = [box for box, _ in saved(LAYOUTS[name](shape), shape)]
    assert boxes.overlapping(written) is None
    assert sum(map(boxes.volume, written)) == math.prod(shape)


@pytest.mark.parametrize(("source", "target"), PAIRS, ids=[f"{a} to {b}" for a, b in PAIRS])
def test_every_layout_becomes_every_other(source: str, target: str) -> None:
    for shape in SHAPES:
        written = saved(LAYOUTS[source](shape), shape)
        marker, plan = marker_of(shape), Saved([box for box, _ in written])
        for rank in ranks(LAYOUTS[target](shape)):
            for local in (local for local in rank.values() if local.logical == "w"):
                copies, absent = plan.plan(local.pieces)
                assert not absent
                assert sum(copy.size for copy in copies) == sum(boxes.volume(piece.box) for piece in local.pieces)
                buffer = torch.full_like(filled(local, marker), -7)
                for copy in copies:
                    performed(copy, written[copy.source][1], buffer)
                assert torch.equal(buffer, filled(local, marker))
                for piece in local.pieces:
                    assert torch.equal(read(piece, buffer), part(marker, piece))


@pytest.mark.parametrize("target", LAYOUTS)
def test_runs_copy_the_same_elements(target: str) -> None:
    for shape in SHAPES:
        written = saved(LAYOUTS["fsdp x tp"](shape), shape)
        for rank in ranks(LAYOUTS[target](shape)):
            for local in (local for local in rank.values() if local.logical == "w"):
                buffer = torch.full_like(filled(local, marker_of(shape)), -7)
                for copy in Saved([box for box, _ in written]).plan(local.pieces)[0]:
                    for start, to, length in copy.runs():
                        buffer[to : to + length] = written[copy.source][1][start : start + length]
                assert torch.equal(buffer, filled(local, marker_of(shape)))


def test_what_nobody_saved_is_named() -> None:
    shape = (6, 4)
    written = [box for box, _ in saved(LAYOUTS["fsdp 4"](shape), shape)]
    (rank,) = ranks(LAYOUTS["single"](shape))
    _, absent = Saved(written[:-1]).plan(rank["w"].pieces)
    assert sum(map(boxes.volume, absent)) == boxes.volume(written[-1])
    assert all(boxes.intersect(box, written[-1]) == box for box in absent)
