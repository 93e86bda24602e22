"""What is acknowledged is a step that all ranks have, and can come back to: disks that get bases only, each at its own
pace; a keeper that died; optimizers that need one base for all ranks."""

import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist

import everstep
from everstep.keeper.link import Link
from everstep.recover.cohort import stand
from everstep.ring import ring as words
from everstep.store.disk import existing
from tests import worlds
from tests.cluster.programs import Program, differences
from tests.cluster.test_in_step import Trained
from tests.cluster.two import opened
from tests.faults.test_keeper import keeper_pid

WORLD = 2
STEPS = 160
TAKES = (13, 17)
"""So many steps one base takes the disk of each rank: left to themselves they would not meet before step 221."""


def slow(steps: int) -> None:
    """From now on this process finds its disk busy for so many steps with each base."""
    begun = [-steps]
    real, put = Link.base_in_hand.fget, Link.put_state  # type: ignore[attr-defined]

    def put_state(link: Link, step: int, *args: object, to_disk: bool) -> int:
        begun[0] = step if to_disk else begun[0]
        return int(put(link, step, *args, to_disk=to_disk))  # type: ignore[arg-type]

    def in_hand(link: Link) -> bool:
        return real(link) or link.ring.word(words.W_COMMITTED) <= begun[0] + steps

    Link.put_state = put_state  # type: ignore[method-assign, assignment]
    Link.base_in_hand = property(in_hand)  # type: ignore[method-assign, assignment]


def killed_with_its_host(rank: int, home: Path) -> None:
    """Nothing is left but the files; and what each rank said was on disk."""
    worlds.met(rank, WORLD, home, "first")
    slow(TAKES[rank])
    program = Program("fsdp")
    run = opened(home / "run", program, source="state")
    run.resume()
    said = -1
    for at in range(STEPS):
        program.step(at)
        run.commit()
        said = max(said, run.acknowledged("disk"))
    (home / f"said{rank}").write_text(str(said))
    dist.barrier()
    if rank == 0:
        os.kill(keeper_pid(home / "run"), signal.SIGKILL)
    os._exit(0)


def after_a_keeper_died(rank: int, home: Path, kind: str) -> None:
    worlds.met(rank, WORLD, home, "first")
    program = Program(kind)
    run = opened(home / "run", program)
    run.resume()
    for at in range(10):
        if at == 5:
            assert run.wait(timeout=60) == 5
            dist.barrier()
            if rank == 0:
                os.kill(keeper_pid(home / "run"), signal.SIGKILL)
            dist.barrier()
        program.step(at)
        run.commit()
    assert run.wait(timeout=60) == 10
    dist.barrier()
    if rank == 0:
        os.kill(keeper_pid(home / "run"), signal.SIGKILL)
    os._exit(0)


def goes_on(rank: int, home: Path, kind: str, first: int, until: int) -> None:
    worlds.met(rank, WORLD, home, "second")
    program, whole = Program(kind, seed=5), Program(kind)
    with opened(home / "run", program) as run:
        assert run.resume() == first
        for at in range(first, until):
            program.step(at)
            run.commit()
    for at in range(until):
        whole.step(at)
    assert differences(program.whole(), whole.whole()) == []
    dist.destroy_process_group()


def test_what_was_acknowledged_is_there_after_the_host_was_lost(tmp_path: Path) -> None:
    worlds.spawn(killed_with_its_host, (tmp_path,), WORLD)
    said = max(int((tmp_path / f"said{rank}").read_text()) for rank in range(WORLD))
    held = stand(existing(str(tmp_path / "run")), "run")
    assert held is not None
    assert held.step >= said >= STEPS - 3 * max(TAKES) - 32, "and it went on"
    assert everstep.restore(tmp_path / "run").step == held.step
    worlds.spawn(goes_on, (tmp_path, "fsdp", held.step, STEPS + 3), WORLD)


@pytest.mark.parametrize("kind", ["fsdp", "ddp"])
def test_steps_that_a_keepers_successor_wrote_count_for_all_ranks(kind: str, tmp_path: Path) -> None:
    worlds.spawn(after_a_keeper_died, (tmp_path, kind), WORLD)
    assert everstep.restore(tmp_path / "run").step == 10
    worlds.spawn(goes_on, (tmp_path, kind, 10, 13), WORLD)


def replayed_in_step(rank: int, home: Path) -> None:
    """Each rank has a base due at steps of its own, and keeps no more than it must."""
    worlds.met(rank, WORLD, home, "first")
    program = Trained("fsdp", "muon")
    limits: dict[str, Any] = {"base_log_bytes_max": 18_000 if rank else 27_000, "segment_bytes": 4000}
    run = opened(home / "run", program, retain_bytes_max=1, **limits)
    run.resume()
    for at in range(61):
        program.step(at)
        run.commit()
        run.wait(timeout=60)
    dist.barrier()
    if rank == 0:
        os.kill(keeper_pid(home / "run"), signal.SIGKILL)
    os._exit(0)


def goes_on_in_step(rank: int, home: Path) -> None:
    worlds.met(rank, WORLD, home, "second")
    program, whole = Trained("fsdp", "muon", seed=5), Trained("fsdp", "muon")
    with opened(home / "run", program) as run:
        assert run.resume() == 61
        assert run.ledger is not None
        assert run.ledger.records > 0
    for at in range(61):
        whole.step(at)
    assert differences(program.whole(), whole.whole()) == []
    dist.destroy_process_group()


def test_ranks_that_are_replayed_in_step_always_have_a_base_in_common(tmp_path: Path) -> None:
    worlds.spawn(replayed_in_step, (tmp_path,), WORLD)
    worlds.spawn(goes_on_in_step, (tmp_path,), WORLD)
