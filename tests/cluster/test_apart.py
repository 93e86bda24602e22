"""Ranks that take bases at steps of their own, while a schedule gives every step another rate: any layout goes on."""

from pathlib import Path

import pytest
import torch
import torch.distributed as dist

import everstep
from everstep.errors import Mismatch
from everstep.store.disk import existing
from everstep.store.manifest import load_newest
from tests import worlds
from tests.cluster.programs import Program, differences
from tests.cluster.two import opened, train

STEPS = 6
LOG_BYTES = (4_000, 1_000_000)


def trained(rank: int, home: Path, kind: str) -> None:
    worlds.met(rank, 2, home, "trained")
    program = Program(kind)
    train(home / "run", program, STEPS, LOG_BYTES[rank])
    whole = program.whole()
    if rank == 0:
        torch.save(whole, home / "whole.pt")
    dist.destroy_process_group()


def resumed(rank: int, world: int, home: Path, kind: str) -> None:
    if world > 1:
        worlds.met(rank, world, home, "resumed")
    program = Program(kind, seed=5)
    with opened(home / "run", program) as run:
        assert run.resume() == STEPS
    assert differences(program.whole(), torch.load(home / "whole.pt")) == []
    if world > 1:
        dist.destroy_process_group()


def newest_base(run: Path, rank: int) -> int:
    manifest = load_newest(existing(str(run)), rank)
    assert manifest is not None
    return max(entry.step for entry in manifest.bases)


@pytest.mark.parametrize(("kind", "onto", "world"), [("ddp", "single", 1), ("ddp", "fsdp", 2), ("fsdp", "single", 1)])
def test_another_layout_goes_on(kind: str, onto: str, world: int, tmp_path: Path) -> None:
    worlds.spawn(trained, (tmp_path, kind), 2)
    assert newest_base(tmp_path / "run", 0) > newest_base(tmp_path / "run", 1), "or this shows nothing"
    assert everstep.restore(tmp_path / "run").step == STEPS
    worlds.spawn(resumed, (world, tmp_path, onto), world)


def test_groups_that_differed_are_not_put_together(tmp_path: Path) -> None:
    worlds.spawn(trained, (tmp_path, "ddp"), 2)
    program = Program("single", seed=5)
    held = [parameter for group in program.optimizer.param_groups for parameter in group["params"]]
    program.optimizer = torch.optim.AdamW([{"params": held, "weight_decay": 0.1}], lr=1e-2)
    program.schedule = torch.optim.lr_scheduler.ExponentialLR(program.optimizer, 0.97)
    before = program.whole()
    with opened(tmp_path / "run", program) as run, pytest.raises(Mismatch, match=r"group 0: .* groups that differ"):
        run.resume()
    assert differences(program.whole(), before) == []
