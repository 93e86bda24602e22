"""Real DeepSpeed engines record their steps, and go on from each other, whatever the stage and the number of ranks, and
plain PyTorch from them, from the log, bit for bit."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

import everstep
from everstep.integrations import deepspeed as ours
from tests.peers.test_deepspeed import STAGES, engine, whole
from tests.peers.worlds import STEPS, Tensors, batch, kept, needs, program, world
from tests.unit.foreign import programs
from tests.unit.foreign.programs import differing

pytestmark = needs("deepspeed")
RESUMED = ((1, 1, 2), (2, 2, 2), (3, 3, 2), (1, 3, 2), (3, 2, 2), (2, 1, 1), (3, 3, 1))
"""Stages that trained and that go on, and the ranks of the second."""


def step(one: Any, at: int) -> float:
    x, y = batch(at)
    loss = ((one(x) - y) ** 2).mean()
    one.backward(loss)
    one.step()
    return float(loss)


def everything(one: Any, stage: int) -> Tensors:
    found = {name: tensor.clone() for name, tensor in whole(one, stage).items()}
    found["lr"] = torch.tensor([group["lr"] for group in one.optimizer.param_groups])
    found["weight decay"] = torch.tensor([group["weight_decay"] for group in one.optimizer.param_groups])
    states = one.optimizer.optimizer.state.values()
    found["optimizer steps"] = torch.tensor(sorted({float(state["step"]) for state in states}))
    found["steps"] = torch.tensor([one.global_steps, one.micro_steps])
    return found


def train(rank: int, _ranks: int, homes: dict[int, Path]) -> None:
    for stage, home in homes.items():
        one = engine(stage, seed=0)
        with ours.open(home / "run", one) as run:
            assert run.resume() == 0
            for at in range(STEPS):
                step(one, at)
                assert run.commit() == at + 1
            assert run.wait(timeout=60) == STEPS
            assert run.health.bases <= 1, "a step was not recorded, but kept as a base"
        found = everything(one, stage)
        loss = step(one, STEPS)
        if rank == 0:
            kept(found, home / "whole.pt")
            (home / "loss.json").write_text(json.dumps(loss))


def go_on(rank: int, ranks: int, homes: dict[int, Path]) -> None:
    for source, stage, number in RESUMED:
        if number != ranks:
            continue
        path = homes[source] / f"resumed by {stage} x {ranks}"
        if rank == 0:
            shutil.copytree(homes[source] / "run", path)
        one = engine(stage, seed=8)
        torch.distributed.barrier()
        with ours.open(path, one) as run:
            assert run.resume() == STEPS
            found = everything(one, stage)
            found["loss"] = torch.tensor(step(one, STEPS), dtype=torch.float64)
            assert run.commit() == STEPS + 1
            assert run.wait(timeout=60) == STEPS + 1
        if rank == 0:
            kept(found, path.with_suffix(".pt"))


@pytest.fixture(scope="module")
def homes(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    found = {stage: tmp_path_factory.mktemp(f"zero{stage}") for stage in STAGES}
    world(train, found)
    for ranks in (1, 2):
        world(go_on, found, ranks=ranks)
    return found


@pytest.mark.timeout(600)
@pytest.mark.parametrize(("source", "stage", "ranks"), RESUMED)
def test_an_engine_goes_on_where_another_was(source: int, stage: int, ranks: int, homes: dict[int, Path]) -> None:
    found = torch.load(homes[source] / f"resumed by {stage} x {ranks}.pt")
    loss, wanted = float(found.pop("loss")), json.loads((homes[source] / "loss.json").read_text())
    assert differing(found, torch.load(homes[source] / "whole.pt")) == []
    assert loss == wanted if (source, ranks) == (stage, 2) else loss == pytest.approx(wanted, rel=1e-5)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("stage", STAGES)
def test_plain_pytorch_goes_on_where_an_engine_was(stage: int, homes: dict[int, Path], tmp_path: Path) -> None:
    net, optimizer = program(seed=9)
    shutil.copytree(homes[stage] / "run", tmp_path / "run")
    settings = everstep.Settings(unmatched="keep")  # an engine's counters have no place here
    with everstep.open(tmp_path / "run", model=net, optimizer=optimizer, settings=settings) as run:
        assert run.resume() == STEPS
    found = programs.held(net, optimizer)
    steps = [found.pop(name) for name in [*found] if name.startswith("optimizer/step/")]
    wanted = torch.load(homes[stage] / "whole.pt")
    assert differing(found, {name: wanted[name] for name in found}) == []
    assert [float(one) for one in steps] == [STEPS] * 6
    assert [group["lr"] for group in optimizer.param_groups] == [1e-2, 3e-3]
