"""Real DeepSpeed: what its engine holds is what an import gives, and what we export is what its engine then holds."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch

import everstep
from everstep.cli.held import held as state_at
from everstep.errors import Damaged
from everstep.foreign.arrive.arrive import arrive
from everstep.foreign.arrive.wishes import wishes
from everstep.foreign.depart.depart import depart
from everstep.foreign.recognise import read
from tests.peers.worlds import STEPS, Tensors, batch, deepspeed, kept, needs, program, world
from tests.unit.foreign import programs
from tests.unit.foreign.programs import differing

pytestmark = needs("deepspeed")
STAGES = (1, 2, 3)
LOADED = ((1, 2), (1, 1), (2, 2), (3, 2), (3, 1))
"""Stages, and numbers of ranks, of the engines that load what we export."""


def engine(stage: int, seed: int, *, universal: bool = False) -> Any:
    net, optimizer = program(seed)
    settings: dict[str, Any] = {
        "train_micro_batch_size_per_gpu": 4,
        "zero_optimization": {"stage": stage},
        "zero_allow_untested_optimizer": True,
        "checkpoint": {"load_universal": universal},
    }
    if stage == 3:
        settings["zero_optimization"] |= {"sub_group_size": 10, "stage3_param_persistence_threshold": 0}
    return deepspeed().initialize(model=net, optimizer=optimizer, config=settings)[0]


def whole(one: Any, stage: int) -> Tensors:
    """Everything that an engine holds, by DeepSpeed's own accessors; every rank must call it."""
    import deepspeed
    from deepspeed.utils import safe_get_full_fp32_param, safe_get_full_optimizer_state

    if stage < 3:  # this release links the moments of the first group only; the accessors below need them all
        one.optimizer._hp_optimizer_states_linked = False
        one.optimizer._lazy_init_hp_params_optimizer_state()
    found: Tensors = {}
    for key, parameter in one.module.named_parameters():
        with deepspeed.zero.GatheredParameters([parameter], enabled=stage == 3):
            found[f"model/{key}"] = parameter.detach().clone()
        if parameter.requires_grad:
            found[f"model/{key}"] = safe_get_full_fp32_param(parameter)
            for state in ("exp_avg", "exp_avg_sq"):
                found[f"optimizer/{state}/{key}"] = safe_get_full_optimizer_state(parameter, state)
    return found | {f"model/{key}": buffer for key, buffer in one.module.named_buffers()}


def train(rank: int, _ranks: int, homes: dict[int, Path]) -> None:
    for stage, home in homes.items():
        one = engine(stage, seed=0)
        for step in range(STEPS):
            x, y = batch(step)
            one.backward(((one(x) - y) ** 2).mean())
            one.step()
        one.save_checkpoint(str(home / "zero"))
        found = whole(one, stage)
        if rank == 0:
            kept(found, home / "whole.pt")


def load(rank: int, ranks: int, homes: dict[int, Path]) -> None:
    for stage, home in homes.items():
        one = engine(stage, seed=8, universal=True)
        path, _ = one.load_checkpoint(str(home / "universal"))
        assert path is not None
        found = whole(one, stage)
        found["steps"] = torch.tensor(one.global_steps)
        states = one.optimizer.optimizer.state.values()
        found["optimizer steps"] = torch.stack([torch.as_tensor(state["step"]).reshape(()) for state in states])
        found["lr"] = torch.tensor([group["lr"] for group in one.optimizer.param_groups])
        if rank == 0:
            kept(found, home / f"loaded by {ranks}.pt")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    homes = {stage: tmp_path_factory.mktemp(f"zero{stage}") for stage in STAGES}
    world(train, homes)
    return homes


@pytest.fixture(scope="module")
def loaded(trained: dict[int, Path]) -> dict[int, Tensors]:
    """What each stage's engine is to load: the run of another stage, after one step more in plain torch."""
    held = {}
    for stage, home in trained.items():
        arrive(str(trained[4 - stage] / "zero"), str(home / "run"), wishes())
        net, optimizer = program(seed=9)
        with everstep.open(home / "run", model=net, optimizer=optimizer) as run:
            run.resume()
            x, y = batch(STEPS)
            ((net(x) - y) ** 2).mean().backward()
            optimizer.step()
            run.commit()
            run.wait(timeout=60)
        depart(state_at(str(home / "run"), None), str(home / "universal"), "deepspeed-universal")
        held[stage] = programs.held(net, optimizer)
    for ranks in (1, 2):
        world(load, {stage: trained[stage] for stage, number in LOADED if number == ranks}, ranks=ranks)
    return held


def resumed(url: Path) -> programs.Program:
    net, optimizer = program(seed=9)
    with everstep.open(url, model=net, optimizer=optimizer) as run:
        assert run.resume() == STEPS
    return net, optimizer


@pytest.mark.timeout(600)
@pytest.mark.parametrize("stage", STAGES)
def test_an_import_gives_what_the_engine_held(stage: int, trained: dict[int, Path], tmp_path: Path) -> None:
    arrive(str(trained[stage] / "zero"), str(tmp_path / "run"), wishes())
    net, optimizer = resumed(tmp_path / "run")
    found = programs.held(net, optimizer)
    steps = [found.pop(name) for name in [*found] if name.startswith("optimizer/step/")]
    assert differing(found, torch.load(trained[stage] / "whole.pt")) == []
    assert [float(step) for step in steps] == [STEPS] * 6
    assert [group["lr"] for group in optimizer.param_groups] == [1e-2, 3e-3]
    assert [group["weight_decay"] for group in optimizer.param_groups] == [0.1, 0.0]


@pytest.mark.timeout(600)
@pytest.mark.parametrize("stage", STAGES)
def test_a_flipped_byte_is_found(stage: int, trained: dict[int, Path], tmp_path: Path) -> None:
    part = max(read(str(trained[stage] / "zero")).tensors, key=lambda found: found.place.nbytes)
    file = Path(part.place.path)
    intact = file.read_bytes()
    content = bytearray(intact)
    content[part.place.offset + part.place.nbytes // 2] ^= 16
    file.write_bytes(content)
    try:
        with pytest.raises(Damaged, match=re.escape(file.name)):
            arrive(str(trained[stage] / "zero"), str(tmp_path / "run"), wishes())
    finally:
        file.write_bytes(intact)
    assert not (tmp_path / "run").exists()


@pytest.mark.timeout(900)
@pytest.mark.parametrize(("stage", "ranks"), LOADED)
def test_deepspeed_loads_what_is_exported(
    stage: int, ranks: int, trained: dict[int, Path], loaded: dict[int, Tensors]
) -> None:
    found = torch.load(trained[stage] / f"loaded by {ranks}.pt")
    assert int(found.pop("steps")) == STEPS + 1
    assert set(found.pop("optimizer steps").tolist()) == {STEPS + 1}
    # DeepSpeed gives all groups of stage 3 the first one's hyper-parameters; the export says so.
    assert torch.equal(found.pop("lr"), torch.tensor([1e-2, 1e-2 if stage == 3 else 3e-3]))
    wanted = {name: value for name, value in loaded[stage].items() if "/step/" not in name}
    # DeepSpeed's universal loader leaves buffers and frozen parameters alone; they are in the model file.
    lost = {name for name in wanted if "frozen" in name or "running" in name or "num_batches" in name}
    assert [name for name in differing(found, wanted) if name not in lost] == []
    file = trained[stage] / "universal" / f"global_step{STEPS + 1}_universal" / "mp_rank_00_model_states.pt"
    rest = {f"model/{name}": tensor for name, tensor in torch.load(file)["module"].items()}
    assert differing(rest, {name: wanted[name] for name in lost}) == []
