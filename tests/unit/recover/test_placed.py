"""Ranks prove together what none of them holds alone: every element once, and nothing that nobody has."""

import itertools
import json
import math

import pytest
import torch

from everstep.capture.digests import digest
from everstep.company import Alone
from everstep.errors import Damaged
from everstep.layout import boxes
from everstep.recover import placed
from everstep.recover.placed import Brought, known, prove
from everstep.types import Box, Local, boxed, whole
from tests.unit.layout.meshes import LAYOUTS, POISON, SHAPES, Shape, filled, ranks

PAIRS = list(itertools.product(LAYOUTS, LAYOUTS))
WHOLE = torch.arange(48.0).reshape(8, 6)
THEIRS = boxed("w", (8, 6), whole((8, 6)))


def parts(name: str, shape: Shape) -> list[Local]:
    return [local for held in ranks(LAYOUTS[name](shape)) for local in held.values() if local.logical == "w"]


@pytest.mark.parametrize(("source", "target"), PAIRS, ids=[f"{a} to {b}" for a, b in PAIRS])
def test_what_lies_right_has_the_writers_digest_in_every_layout(source: str, target: str) -> None:
    for shape in SHAPES:
        marker = torch.arange(math.prod(shape)).view(shape)
        for theirs in parts(source, shape):
            tensor = filled(theirs, marker)[: math.prod(theirs.shape)].view(theirs.shape)
            had = known({}, {"w": tensor}, {"w": theirs})["w"]
            for ours in parts(target, shape):
                mine = filled(ours, marker)[: math.prod(ours.shape)].view(ours.shape)
                met = (boxes.intersect(a.box, b.box) for a in theirs.pieces for b in ours.pieces)
                common = [box for box in met if box is not None]
                if common and sum(map(boxes.volume, common)) == sum(boxes.volume(piece.box) for piece in theirs.pieces):
                    one = Brought(0, "w", theirs, had, tuple(common), mine, ours, copied=True)
                    assert prove(1, [one], Alone()).startswith("1 tensors")


def share(low: tuple[int, int], high: tuple[int, int], tensor: torch.Tensor = WHOLE) -> str:
    """What a rank says that holds one box of a tensor of which writer 3 had all."""
    box = Box(low, high)
    part = tensor[boxes.slices(box)].contiguous()
    told: list[str] = []

    class Ear:
        rank, world = 1, 2

        def tell(self, _key: str, text: str) -> None:
            told.append(text)

        def hear(self, _key: str) -> str:
            return "+[0,[],[]]"

    one = Brought(3, "w", THEIRS, digest([WHOLE])[0], (box,), part, boxed("w", (8, 6), box), copied=True)
    prove(1, [one], Ear())
    return told[0]


LEFT, RIGHT = ((0, 0), (8, 3)), ((0, 3), (8, 6))
OTHER = WHOLE.clone()
OTHER[7, 5] += 1
CASES = {
    "two halves": ([share(*LEFT), share(*RIGHT)], [1, [], []]),
    "two halves, each of them twice": ([share(*LEFT), share(*RIGHT), share(*LEFT), share(*RIGHT)], [1, [], []]),
    "a half that nobody holds": ([share(*LEFT), share(*LEFT)], [0, ["w of writer 3"], []]),
    "halves that overlap": ([share(*LEFT), share((0, 2), (8, 6))], [0, ["w of writer 3"], []]),
    "an element that is another": ([share(*LEFT), share(*RIGHT, OTHER)], [0, [], ["w of writer 3"]]),
    "replicas that differ": ([share(*RIGHT), share(*RIGHT, OTHER)], [0, [], ["w of writer 3"]]),
    "halves in each other's place": (
        [share(*LEFT, WHOLE.roll(3, 1)), share(*RIGHT, WHOLE.roll(3, 1))], [0, [], ["w of writer 3"]]
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_the_ranks_together_hold_what_the_writer_had_or_it_is_said(case: str) -> None:
    said, found = CASES[case]
    assert json.loads(placed._added(said)) == found


def test_what_was_read_to_its_place_is_not_digested_again_unless_something_was_copied_there() -> None:
    top, bottom = boxed("w", (8, 6), Box((0, 0), (4, 6))), boxed("w", (8, 6), Box((4, 0), (8, 6)))
    wrong = Brought(0, "w", top, (1, 2), (top.pieces[0].box,), WHOLE, THEIRS, copied=False)
    right = Brought(1, "w", bottom, digest([WHOLE[4:]])[0], (bottom.pieces[0].box,), WHOLE, THEIRS, copied=True)
    assert prove(1, [wrong], Alone()) == "1 tensors have the digests that their writers had"
    with pytest.raises(Damaged, match="step 1: w of writer 0 arrived with another digest"):
        prove(1, [wrong, right], Alone())


def test_nothing_is_said_of_what_a_rank_holds_nothing_of() -> None:
    one = Brought(0, "w", THEIRS, (1, 2), (), WHOLE[:0], boxed("w", (8, 6), Box((8, 0), (8, 6))), copied=False)
    assert prove(1, [one], Alone()) == "0 tensors have the digests that their writers had"


def test_parts_that_prove_nothing_are_said_to() -> None:
    one = Brought(0, "w", THEIRS, (1, 2), (Box((0, 0), (2, 6)),), WHOLE, THEIRS, copied=True)
    assert prove(1, [one], Alone()).endswith("of w of writer 0 the ranks hold only parts, which prove nothing")


def test_padding_is_no_part_of_a_digest() -> None:
    flat = Local("w", (5,), (4,), boxed("w", (5,), Box((2,), (5,))).pieces)
    one, two = (known({"w": (7, 7)}, {"w": torch.tensor([1.0, 2.0, 3.0, pad])}, {"w": flat}) for pad in (0.0, POISON))
    assert one == two != {"w": (7, 7)}
