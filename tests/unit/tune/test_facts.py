"""Facts that nobody can have measured are refused, and the message says which and why."""

import math
from typing import Any

import pytest

from everstep.tune.facts import Facts, Piece
from tests.unit.tune.measured import NAMED, facts

IMPOSSIBLE: list[tuple[dict[str, Any], str]] = [
    ({"bus_bytes_per_s": 0.0}, "bus_bytes_per_s must be above 0"),
    ({"bus_bytes_per_s": math.nan}, "bus_bytes_per_s must be above 0"),
    ({"bus_bytes_per_s": math.inf}, "bus_bytes_per_s must be above 0"),
    ({"device_bytes_per_s": -1.0}, "device_bytes_per_s must be above 0"),
    ({"device_bytes_per_s": 1999.0}, "a snapshot would cost more than waiting"),
    ({"copy_seconds": -1e-6}, "copy_seconds must not be negative"),
    ({"forward_seconds": -1.0}, "forward_seconds must not be negative"),
    ({"backward_seconds": math.nan}, "backward_seconds must not be negative"),
    ({"optimizer_seconds": math.inf}, "optimizer_seconds must not be negative"),
    ({"gradient_bytes": -1}, "gradient_bytes must not be negative"),
    ({"interference": -0.01}, "interference must not be negative"),
    ({"forward_seconds": 0.0, "backward_seconds": 0.0, "optimizer_seconds": 0.0}, "measure a step"),
    ({"room": ()}, "room must begin at 0 seconds"),
    ({"room": ((1.0, 5),)}, "room must begin at 0 seconds"),
    ({"room": ((0.0, 5), (2.0, 5), (1.0, 5))}, "room must be in order of time"),
    ({"room": ((0.0, 5), (1.0, 5), (1.0, 5))}, "room must be in order of time"),
    ({"room": ((0.0, 5), (4.0, 5))}, "after the step of 4.0 s has ended"),
    ({"room": ((0.0, 5), (1.0, -1))}, "room must not be negative"),
]


@pytest.mark.parametrize("named, words", IMPOSSIBLE)
def test_what_cannot_be_is_refused_by_name(named: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        facts(100, **named)


@pytest.mark.parametrize(
    "pieces, words",
    [
        ((), "nothing to copy"),
        ((Piece("w", 0),), "'w' has 0 bytes"),
        ((Piece("w", 8, 0),), "in 0 copies"),
        ((Piece("w", 8), Piece("w", 9)), "two are named 'w'"),
    ],
)
def test_pieces_have_bytes_and_a_name_of_their_own(pieces: tuple[Piece, ...], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Facts(pieces=pieces, **NAMED)


def test_the_window_is_the_step_without_its_optimizer() -> None:
    assert (facts(1).window_seconds, facts(1).step_seconds) == (3.0, 4.0)


def test_every_copy_has_its_price_and_the_packed_gradient_is_one() -> None:
    measured = facts(1000, copy_seconds=0.25, gradient_bytes=500)
    assert measured.direct_seconds(Piece("w", 1000, 3)) == 1.75
    assert measured.gradient_seconds == 0.75
    assert facts(1, copy_seconds=0.25).gradient_seconds == 0
