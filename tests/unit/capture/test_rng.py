"""Every generator goes on where it was; a state that cannot be right is refused."""

import random
from typing import Any

import numpy
import pytest
import torch

from everstep.capture import rng
from everstep.capture.context import encode
from everstep.capture.tensors import view
from everstep.codec import tree
from everstep.errors import Damaged


def draw() -> tuple[Any, ...]:
    return (
        random.random(),
        random.gauss(0, 1),
        torch.rand(3).tolist(),
        numpy.random.rand(2).tolist(),
        torch.randn(1).item(),
    )


def through_a_file(states: dict[str, Any]) -> dict[str, Any]:
    encoded = encode("rng", {name: rng.packed(name, state) for name, state in states.items()})
    tensors = {t.name: view(memoryview(bytearray(data)), t) for t, data in encoded.blobs}
    return tree.decode(encoded.tree, tensors.__getitem__)


@pytest.mark.parametrize("before", range(4))
def test_what_is_drawn_after_put_is_what_was_drawn_after_take(before: int) -> None:
    for _ in range(before):
        draw()
    random.gauss(0, 1)  # leaves a second number waiting in the generator
    states = through_a_file(rng.take())
    first = draw()
    assert rng.put(states) == []
    assert draw() == first


def test_taking_does_not_move_a_generator() -> None:
    one, two = rng.take(), rng.take()
    assert all(rng.same(name, one[name], two[name]) for name in one)


MOVES: list[tuple[str, Any]] = [
    ("python", random.random), ("python", lambda: random.gauss(0, 1)), ("torch", lambda: torch.rand(1)),
    ("numpy", lambda: numpy.random.rand(1)), ("numpy", numpy.random.randn),
]  # fmt: skip


@pytest.mark.parametrize("name, move", MOVES)
def test_a_generator_that_moved_is_noticed_and_no_other(name: str, move: Any) -> None:
    for _ in range(2):  # the second normal number was waiting: nothing moves but that it is gone
        before = rng.take()
        move()
        after = rng.take()
        assert [other for other in before if not rng.same(other, before[other], after[other])] == [name]


def test_a_generator_that_is_not_here_is_named() -> None:
    assert rng.put({"cuda:99": torch.zeros(16, dtype=torch.uint8), "quantum": 1}) == ["cuda:99", "quantum"]


@pytest.mark.parametrize("position", [-1, 625, 10**6])
def test_a_position_beyond_numpy_s_generator_is_refused(position: int) -> None:
    """numpy takes it, and then reads beyond its memory."""
    states = {"numpy": rng.take()["numpy"]}
    states["numpy"]["state"]["pos"] = position
    with pytest.raises(Damaged):
        rng.put(states)


def test_a_new_rank_gets_numbers_of_its_own_and_the_same_again() -> None:
    drawn = {}
    for who in (("run", 7, 4), ("run", 7, 5), ("run", 8, 4), ("other", 7, 4)):
        rng.derive(*who)
        drawn[who] = draw()
        rng.derive(*who)
        assert draw() == drawn[who]
    assert len(set(map(str, drawn.values()))) == 4
