"""Programs of DTensors: what one process holds of them is recorded, and comes back into them."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

import everstep

STEPS = 9


@pytest.fixture(scope="module", autouse=True)
def world() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


class Program:
    def __init__(self, kind: str, optimizer: type[torch.optim.Optimizer], **options: Any) -> None:
        torch.manual_seed(2)
        self.model = nn.Sequential(nn.Linear(6, 10), nn.LayerNorm(10), nn.Dropout(0.1), nn.Linear(10, 3))
        if kind == "fsdp":
            mesh = init_device_mesh("cpu", (1,), mesh_dim_names=("dp",))
            fully_shard(self.model[0], mesh=mesh)
            fully_shard(self.model, mesh=mesh)
        self.optimizer = optimizer(self.model.parameters(), lr=1e-2, **options)  # type: ignore[call-arg]

    def step(self) -> None:
        self.model(torch.randn(5, 6)).square().mean().backward()
        self.optimizer.step()
        self.optimizer.zero_grad()

    def bits(self) -> list[bytes]:
        tensors = [*self.model.parameters(), *(v for s in self.optimizer.state.values() for v in s.values())]
        plain = [t.full_tensor() if isinstance(t, DTensor) else t for t in tensors]
        return [t.detach().numpy().tobytes() for t in (*plain, torch.get_rng_state())]


@pytest.mark.parametrize("source", ["gradient", "state"])
@pytest.mark.parametrize(
    ("optimizer", "options"),
    [(torch.optim.AdamW, {}), (torch.optim.AdamW, {"foreach": True}), (torch.optim.SGD, {"momentum": 0.9})],
    ids=["adamw", "adamw foreach", "sgd"],
)
def test_a_sharded_program_resumes_exactly(
    optimizer: type[torch.optim.Optimizer], options: dict[str, Any], source: str, tmp_path: Path
) -> None:
    whole = Program("fsdp", optimizer, **options)
    for _ in range(STEPS):
        whole.step()
    for until in (1, 4, STEPS):
        program = Program("fsdp", optimizer, **options)
        with everstep.open(
            tmp_path / "run",
            model=program.model,
            optimizer=program.optimizer,
            settings=everstep.Settings(source=source),
        ) as run:
            for _ in range(run.resume(), until):
                program.step()
                run.commit()
            assert run.health.not_recorded == 0
            assert not run.health.warnings
    assert program.bits() == whole.bits()
    assert all(isinstance(parameter, DTensor) for parameter in program.model.parameters())
    assert all(isinstance(s["exp_avg" if "exp_avg" in s else "momentum_buffer"], DTensor)
               for s in program.optimizer.state.values())  # fmt: skip


@pytest.mark.parametrize(("first", "then"), [("fsdp", "plain"), ("plain", "fsdp")])
def test_what_was_sharded_goes_on_unsharded_and_back(first: str, then: str, tmp_path: Path) -> None:
    whole = Program("plain", torch.optim.AdamW)
    for _ in range(STEPS):
        whole.step()
    for kind, until in ((first, 4), (then, STEPS)):
        program = Program(kind, torch.optim.AdamW)
        with everstep.open(tmp_path / "run", model=program.model, optimizer=program.optimizer) as run:
            for _ in range(run.resume(), until):
                program.step()
                run.commit()
    assert program.bits() == whole.bits()
