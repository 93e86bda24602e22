"""A rank that nobody was before takes over everything but the random numbers, which another rank goes on drawing."""

import random

import numpy
import pytest
import torch

from everstep.capture.context import Context
from everstep.capture.roster import call_the_roll
from everstep.company import Alone
from everstep.log.inventory import survey
from everstep.recover.reshard import onto_shards
from everstep.recover.writers import Writers
from everstep.store.disk import existing
from tests.format import make_golden_parts as golden

Drawn = tuple[float, float, float]


def joined(rank: int) -> tuple[set[str], Drawn]:
    """What the ledger says of the generators of this rank, and what they draw next. One writer was there before."""
    program = golden.Program(0, 1)
    roster = call_the_roll(program.model, program.optimizer, program.held)
    disk = existing(str(golden.HERE / "run1"))
    try:
        epoch = survey(disk, str(golden.HERE / "run1")).epoch
        assert epoch is not None
        writers = Writers(disk, str(golden.HERE / "run1"), [epoch], golden.STEPS)
        ledger, _ = onto_shards(writers, roster, Context(roster, {}), Alone(rank), alone=False)
    finally:
        disk.release()
    said: set[str] = {item.status for item in ledger if item.kind == "generator"}
    return said, (random.random(), float(numpy.random.random()), float(torch.rand(())))


@pytest.fixture(autouse=True)
def _generators() -> None:
    """Wherever they stood before."""
    random.seed(5)
    torch.manual_seed(5)
    numpy.random.seed(5)


def test_new_ranks_draw_numbers_of_their_own_and_the_same_ones_at_every_resume() -> None:
    (old, first), (new, second), (other, third) = joined(0), joined(1), joined(2)
    assert (old, new, other) == ({"restored"}, {"derived"}, {"derived"})
    assert len({*first, *second, *third}) == 9
    assert [joined(rank)[1] for rank in range(3)] == [first, second, third]
