"""What all ranks hold, found without going through them, is what going through them finds."""

from collections import Counter

import pytest

from bench.reshard.everyone import Everyone
from everstep.errors import Misdescribed
from everstep.layout.language import Partial, Replicate, Shard, Unique
from everstep.layout.mesh import Mesh, Seat
from everstep.layout.spec import Rule, Spec
from everstep.layout.view import View
from everstep.types import Box
from tests.unit.layout.meshes import LAYOUTS, SHAPES, Case, Shape, ranks


def by_asking(case: Case) -> Counter[tuple[str, Box, int]]:
    return Counter(
        (local.logical, piece.box, rank)
        for rank, held in enumerate(ranks(case)) for local in held.values() for piece in local.pieces
    )  # fmt: skip


def by_looking(case: Case) -> Counter[tuple[str, Box, int]]:
    everyone = Everyone(case.spec, case.names)
    logical = {local.logical for held in ranks(case) for local in held.values()}
    return Counter((name, held.box, rank) for name in logical for held in everyone.held(name) for rank in held.ranks())


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("name", LAYOUTS)
def test_it_is_what_every_rank_says_of_itself(name: str, shape: Shape) -> None:
    case = LAYOUTS[name](shape)
    assert by_looking(case) == by_asking(case)


def test_copies_are_counted_and_not_gone_through() -> None:
    spec = Spec(Mesh((("dp", 1 << 40), ("tp", 2))), (Rule("w", (Replicate("dp"), Shard("tp", 0))),))
    found = Everyone(spec, {"w": (4,)}).held("w")
    assert [(held.box, held.first, held.copies) for held in found] == [
        (Box((0,), (2,)), 0, 1 << 40),
        (Box((2,), (4,)), 1, 1 << 40),
    ]


def test_a_stage_without_the_tensor_ends_there() -> None:
    asked = []

    class Watched:
        def apply(self, view: View, seat: Seat) -> View:
            asked.append(seat.on("tp"))
            return view

    spec = Spec(Mesh((("pp", 1000), ("tp", 3))), (Rule("w", (Unique("pp", 7), Watched())),))
    found = Everyone(spec, {"w": (4,)}).held("w")
    assert [held.first for held in found] == [21, 22, 23]
    assert asked == [(0, 3), (1, 3), (2, 3)]


def test_versions_of_a_partial_tensor_are_held_apart() -> None:
    spec = Spec(Mesh((("dp", 3),)), (Rule("w", (Partial("dp"),)),))
    assert sorted(rank for held in Everyone(spec, {"w": (2,)}).held("w") for rank in held.ranks()) == [0, 1, 2]


def test_an_axis_that_the_mesh_lacks_is_refused() -> None:
    spec = Spec(Mesh((("dp", 3),)), (Rule("w", (Shard("tp", 0),)),))
    with pytest.raises(Misdescribed):
        Everyone(spec, {"w": (2,)}).held("w")


def test_a_mistake_in_a_word_is_not_taken_for_a_question() -> None:
    class Wrong:
        def apply(self, view: View, seat: Seat) -> View:
            raise KeyError("elsewhere")

    with pytest.raises(KeyError, match="elsewhere"):
        Everyone(Spec(Mesh(), (Rule("w", (Wrong(),)),)), {"w": (2,)}).held("w")
