"""Replicas share the writing. When fewer of them go on, from memory that holds everything, so must their disk."""

import os
import signal
from pathlib import Path

import torch.distributed as dist

from tests import worlds
from tests.cluster.programs import Program, differences
from tests.cluster.test_killed import ended
from tests.cluster.two import opened
from tests.faults.test_keeper import gone, keeper_pid, until

STEPS = 5


def until_killed(rank: int, home: Path) -> None:
    worlds.met(rank, 2, home, "two")
    program = Program("ddp")
    run = opened(home / "run", program)
    run.resume()
    for at in range(STEPS):
        program.step(at)
        run.commit()
    run.wait(timeout=60)
    dist.barrier()
    os.kill(os.getpid(), signal.SIGKILL)


def test_what_one_of_two_replicas_goes_on_with_is_whole_on_its_disk(tmp_path: Path) -> None:
    assert ended(until_killed, tmp_path) == [-signal.SIGKILL] * 2
    program = Program("single", seed=5)
    with opened(tmp_path / "run", program) as run:
        assert run.resume() == STEPS
        assert run.ledger is not None
        assert any(item.origin.startswith("memory") for item in run.ledger)
        program.step(STEPS)
        run.commit()
        run.wait(timeout=60)
    if not until(lambda: gone(tmp_path / "run"), 5):
        os.kill(keeper_pid(tmp_path / "run"), signal.SIGKILL)  # it lingers for the other rank
        assert until(lambda: gone(tmp_path / "run"))
    again = Program("single", seed=6)
    with opened(tmp_path / "run", again) as run:
        assert run.resume() == STEPS + 1
    assert differences(program.whole(), again.whole()) == []
