"""Probing finds, for every layout, what the language says of it; code that computes is refused."""

import math
from collections.abc import Mapping

import pytest
import torch

from everstep.errors import Misdescribed
from everstep.layout import boxes
from everstep.layout.mesh import Mesh
from everstep.layout.probe import probe
from everstep.recover.parts import copy
from everstep.recover.wanted import Wanted
from everstep.types import Box, boxed, whole
from tests.unit.layout.meshes import LAYOUTS, SHAPES, Case, Shape, read

SINGLE = [name for name in LAYOUTS if name not in ("stacked, interleaved", "zero 1 over uneven tp")]
"""Layouts in which a rank holds one tensor of its own for each of the program's."""


def by_the_language(case: Case) -> object:
    """The user's sharding code: here, the language itself at work on real elements."""

    def shard(whole: torch.Tensor, coordinate: Mapping[str, int]) -> torch.Tensor | None:
        local = case.spec.locals(case.names, case.spec.mesh.rank(coordinate)).get("w")
        if local is None:
            return None
        buffer = torch.zeros(math.prod(local.shape), dtype=whole.dtype)
        for piece in local.pieces:
            inside = tuple(slice(lo, h) for lo, h in zip(piece.box.low, piece.box.high, strict=True))
            read(piece, buffer).copy_(whole[inside])
        return buffer.reshape(local.shape)

    return shard


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("name", SINGLE)
def test_what_is_found_moves_every_element_as_the_code_does(name: str, shape: Shape) -> None:
    case = LAYOUTS[name](shape)
    source = torch.arange(math.prod(shape), dtype=torch.float64).view(shape)
    for rank, found in enumerate(probe(by_the_language(case), "w", shape, case.spec.mesh)):  # type: ignore[arg-type]
        told = case.spec.locals(case.names, rank).get("w")
        assert (found is None) == (told is None)
        if found is None or told is None:
            continue
        held = [torch.full(told.shape, -1.0, dtype=torch.float64) for _ in range(2)]
        for local, buffer in zip((found, told), held, strict=True):
            want, there = Wanted("w", buffer, local, [p.box for p in local.pieces]), boxed("w", shape, whole(shape))
            copy(source, there, buffer, local, want.take(there))
        assert torch.equal(*held)
        assert boxes.overlapping([piece.box for piece in found.pieces]) is None


def test_a_range_of_columns_is_one_box() -> None:
    (found,) = probe(lambda whole, _: whole[:, 2:5].contiguous(), "w", (40, 9), Mesh())
    assert found is not None
    assert [piece.box for piece in found.pieces] == [Box((0, 2), (40, 5))]


def test_a_block_of_three_axes_is_one_box() -> None:
    (found,) = probe(lambda whole, _: whole[1:4, 2:5, 3:7].contiguous(), "w", (6, 8, 10), Mesh())
    assert found is not None
    assert [piece.box for piece in found.pieces] == [Box((1, 2, 3), (4, 5, 7))]


def test_a_transposed_tensor_is_refused_or_right() -> None:
    (found,) = probe(lambda whole, _: whole.t().contiguous(), "w", (3, 4), Mesh())
    assert found is not None
    assert sum(boxes.volume(piece.box) for piece in found.pieces) == 12


@pytest.mark.parametrize(
    "code", [lambda whole, _: whole / 2, lambda whole, _: whole - 5, lambda whole, _: whole.sort(descending=True)[0]],
    ids=["scaled", "shifted", "sorted"],
)  # fmt: skip
def test_code_that_computes_is_refused(code: object) -> None:
    with pytest.raises(Misdescribed):
        probe(code, "w", (4, 4), Mesh())  # type: ignore[arg-type]
