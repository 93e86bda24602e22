"""One rank is killed in the middle of training; all go on from the newest step that all can prove."""

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
import torch.distributed as dist

from tests import worlds
from tests.cluster.programs import differences
from tests.cluster.two import opened
from tests.cluster.zero import made
from tests.faults.test_keeper import keeper_pid

WORLD = 2
KILLED, STEPS = 7, 12


def until_killed(rank: int, home: Path, kind: str) -> None:
    worlds.met(rank, WORLD, home, "first")
    program = made(kind)
    run = opened(home / "run", program)
    run.resume()
    for at in range(STEPS):
        if at == KILLED and rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        program.step(at)  # rank 0 fails here, once its peer is gone
        run.commit()
        if at == 2:
            run.wait(timeout=60)


def to_the_end(rank: int, home: Path, kind: str, origin: str) -> None:
    worlds.met(rank, WORLD, home, "second")
    whole = made(kind)
    for at in range(STEPS):
        whole.step(at)
    program = made(kind, seed=5)
    with opened(home / "run", program) as run:
        first = run.resume()
        assert (KILLED - 1 if origin == "memory" else 3) <= first <= KILLED
        assert run.ledger is not None
        assert any(item.origin.startswith(origin) for item in run.ledger)
        for at in range(first, STEPS):
            program.step(at)
            run.commit()
        run.wait(timeout=60)
        assert run.acknowledged() == STEPS
    assert differences(program.whole(), whole.whole()) == []
    dist.destroy_process_group()


def ended(job: Callable[..., None], *args: object) -> list[int | None]:
    """How the processes of a world ended."""
    context = worlds.context
    processes = [context.Process(target=job, args=(rank, *args)) for rank in range(WORLD)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(90)
        process.kill()
    return [process.exitcode for process in processes]


@pytest.mark.parametrize(
    ("kind", "origin"), [("fsdp", "memory"), ("ddp", "memory"), ("zero1", "memory"), ("fsdp", "writer")]
)
def test_the_ranks_agree_on_a_step_that_all_can_prove(kind: str, origin: str, tmp_path: Path) -> None:
    assert ended(until_killed, tmp_path, kind) == [1, -signal.SIGKILL]
    if origin == "writer":
        os.kill(keeper_pid(tmp_path / "run"), signal.SIGKILL)  # and with it what was in memory
    assert ended(to_the_end, tmp_path, kind, origin) == [0, 0]
