"""How much host memory a program's steps and states need, and what is said where there is less."""

import pytest
import torch
from torch import nn

from everstep.capture.context import Context
from everstep.capture.measure import measure, moments
from everstep.capture.roster import Roster, call_the_roll
from everstep.ring.size import Sizes
from everstep.settings import Settings

MIB = 1 << 20
WIDE = 2048
"""A weight of 16 MiB."""
SMALL = MIB
"""More than what records and states say of themselves."""


def roster(kind: str = "adam") -> Roster:
    model = nn.Linear(WIDE, WIDE, bias=False)
    optimizers = {
        "adam": lambda: torch.optim.AdamW(model.parameters()),
        "sgd": lambda: torch.optim.SGD(model.parameters(), lr=0.1),
        "momentum": lambda: torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9),
    }
    return call_the_roll(model, optimizers[kind]())


def measured(free: int, kind: str = "adam", **settings: object) -> Sizes:
    program = roster(kind)
    chosen = Settings(**settings)  # type: ignore[arg-type]
    return measure(program, Context(program, {}), chosen, free, spreads=False, turns=False)


@pytest.mark.parametrize(("kind", "kept"), [("adam", 2), ("sgd", 0), ("momentum", 1)])
def test_what_an_optimizer_will_keep_counts_before_it_has_made_it(kind: str, kept: int) -> None:
    assert moments(roster(kind)) == kept
    assert 0 < measured(1 << 40, kind).state_bytes - (1 + kept) * 16 * MIB < SMALL


def test_what_training_takes_first_is_left_to_it() -> None:
    """Gradients and moments, 48 MiB; of the rest nine tenths may be used, for a state and two records and a half."""
    needed = 88 * MIB
    assert measured(int((needed + SMALL) / 0.9) + 48 * MIB).areas == 1
    assert measured(int(needed / 0.9) + 48 * MIB).areas == 0


def test_the_bound_that_was_asked_for_holds_whatever_is_free() -> None:
    assert measured(0, buffer_bytes_max=90 * MIB).areas == 1
    assert "buffer_bytes_max allows 80.0 MiB" in measured(1 << 40, buffer_bytes_max=80 * MIB).refusal


def test_a_refusal_says_what_would_need_less_and_how_to_allow_more() -> None:
    said = measured(50 * MIB).refusal
    assert "needs 88." in said
    assert "gradients='bf16') needs 68." in said
    assert "source='state') needs 48." in said
    allowed = int(said.partition("buffer_bytes_max=")[2].partition(")")[0])
    assert measured(50 * MIB, buffer_bytes_max=allowed).areas == 1
    for settings in ({"gradients": "bf16"}, {"source": "state"}):
        assert measured(50 * MIB, buffer_bytes_max=allowed, **settings).areas == 1


def test_what_needs_least_has_nothing_else_to_name() -> None:
    assert "bf16" not in measured(0, source="state").refusal
