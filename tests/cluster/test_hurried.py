"""Ranks are killed and at once resumed in another layout, while their keeper still writes what they left."""

import os
import signal
from pathlib import Path

import pytest
import torch.distributed as dist

from tests import worlds
from tests.cluster.programs import Program
from tests.cluster.test_killed import ended
from tests.cluster.two import opened
from tests.crash.rank import whole
from tests.faults.test_keeper import keeper_pid

ON_DISK, STEPS = 2, 12


def until_killed(rank: int, home: Path, kind: str) -> None:
    worlds.met(rank, 2, home, "two")
    program = Program(kind)
    run = opened(home / "run", program, segment_bytes=4000)
    run.resume()
    for at in range(STEPS):
        if at == ON_DISK:
            run.wait(timeout=60)
            dist.barrier()
            if rank == 0:
                os.kill(keeper_pid(home / "run"), signal.SIGSTOP)
            dist.barrier()
        program.step(at)
        run.commit()
    state = whole(program)
    if rank == 0:
        (home / "state").write_text(state)
    dist.barrier()
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize("kind", ["fsdp", "ddp"])
def test_what_only_memory_held_is_there_in_another_layout(kind: str, tmp_path: Path) -> None:
    assert ended(until_killed, tmp_path, kind) == [-signal.SIGKILL] * 2
    os.kill(keeper_pid(tmp_path / "run"), signal.SIGCONT)
    program = Program("single", seed=5)
    with opened(tmp_path / "run", program) as run:
        assert run.resume() == STEPS
        assert whole(program) == (tmp_path / "state").read_text()
        program.step(STEPS)
        run.commit()
        assert run.wait(timeout=60) == STEPS + 1
    again = Program("single", seed=6)
    with opened(tmp_path / "run", again) as run:
        assert run.resume() == STEPS + 1
        assert whole(again) == whole(program)
