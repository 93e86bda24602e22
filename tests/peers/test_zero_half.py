"""Engines in half precision, with clipping, a scheduler of DeepSpeed's own, and small parameters that every rank keeps:
what a step leaves in the model itself is what is there after a resume, and training goes on to the bit."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from everstep.integrations import deepspeed as ours
from tests.peers.worlds import STEPS, Tensors, batch, deepspeed, kept, needs, world
from tests.unit.foreign.programs import differing

pytestmark = needs("deepspeed")
KINDS = {"stage 1": (1, 0), "stage 2": (2, 0), "stage 3": (3, 0), "stage 3, all persistent": (3, 1000)}


def engine(stage: int, persistent: int, seed: int) -> Any:
    torch.manual_seed(seed)
    net = nn.Sequential(nn.Linear(7, 11), nn.LayerNorm(11), nn.Linear(11, 11), nn.Linear(11, 4))
    net[2].requires_grad_(False)
    plain = [net[0].bias, net[3].bias, *net[1].parameters()]
    groups = [{"params": [net[0].weight, net[3].weight]}, {"params": plain, "lr": 3e-3, "weight_decay": 0.0}]
    settings: dict[str, Any] = {
        "train_micro_batch_size_per_gpu": 4, "bf16": {"enabled": True}, "gradient_clipping": 0.5,
        "zero_optimization": {"stage": stage}, "zero_allow_untested_optimizer": True,
        "scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": 10}},
    }  # fmt: skip
    if stage == 3:
        settings["zero_optimization"] |= {"sub_group_size": 10, "stage3_param_persistence_threshold": persistent}
    return deepspeed().initialize(model=net, optimizer=torch.optim.AdamW(groups, lr=1e-2), config=settings)[0]


def held(one: Any, stage: int) -> Tensors:
    """The model's own weights, and what the next steps are made with."""
    import deepspeed

    found = {"lr": torch.tensor(one.get_lr()), "clipped": torch.tensor(one.gradient_clipping())}
    for name, parameter in one.module.named_parameters():
        with deepspeed.zero.GatheredParameters([parameter], enabled=stage == 3):
            found[name] = parameter.detach().clone()
    return found


def step(one: Any, at: int) -> float:
    x, y = (tensor.bfloat16() for tensor in batch(at))
    loss = ((one(x) - y) ** 2).float().mean()
    one.backward(loss)
    one.step()
    return float(loss.detach())


def twice(rank: int, _ranks: int, home: Path) -> None:
    """Each engine once without a break, and once resumed."""
    for name, (stage, persistent) in KINDS.items():
        one = engine(stage, persistent, seed=0)
        with ours.open(home / name, one) as run:
            assert run.resume() == 0
            for at in range(STEPS):
                step(one, at)
                run.commit()
            assert run.wait(timeout=60) == STEPS
            assert run.health.bases <= 1, "a step was not recorded, but kept as a base"
        two = engine(stage, persistent, seed=5)
        with ours.open(home / name, two) as run:
            assert run.resume() == STEPS
            for way, it in (("unbroken", one), ("resumed", two)):
                found = held(it, stage)
                found["losses"] = torch.tensor([step(it, at) for at in range(STEPS, STEPS + 3)])
                if rank == 0:
                    kept(found, home / f"{name}, {way}.pt")
            run.commit()


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("half")
    world(twice, found)
    return found


@pytest.mark.timeout(600)
@pytest.mark.parametrize("kind", KINDS)
def test_an_engine_in_half_precision_goes_on_to_the_bit(kind: str, home: Path) -> None:
    found = torch.load(home / f"{kind}, resumed.pt")
    assert found["0.weight"].dtype is torch.bfloat16
    assert differing(found, torch.load(home / f"{kind}, unbroken.pt")) == []
