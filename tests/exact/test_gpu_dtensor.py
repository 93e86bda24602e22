"""Programs of DTensors on a GPU: recorded from their local parts, replayed by the device's own optimizer."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

import everstep

pytestmark = pytest.mark.gpu
STEPS = 11


@pytest.fixture(scope="module", autouse=True)
def world() -> Iterator[None]:
    dist.init_process_group("cpu:gloo,cuda:nccl", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


class Program:
    def __init__(self, kind: str) -> None:
        torch.manual_seed(2)
        self.model = nn.Sequential(nn.Linear(64, 96), nn.LayerNorm(96), nn.Dropout(0.1), nn.Linear(96, 16)).cuda()
        mesh = init_device_mesh("cuda", (1,), mesh_dim_names=("dp",))
        fully_shard(self.model[0], mesh=mesh)
        fully_shard(self.model, mesh=mesh)
        if kind == "muon":  # not element by element: replayed by the program's own, on its DTensors
            self.optimizer: torch.optim.Optimizer = torch.optim.Muon(
                [p for p in self.model.parameters() if p.dim() == 2]
            )
        else:
            self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-2, fused=kind == "fused")

    def step(self) -> None:
        self.model(torch.randn(8, 64, device="cuda")).square().mean().backward()
        self.optimizer.step()
        self.optimizer.zero_grad()

    def bits(self) -> list[bytes]:
        tensors = [*self.model.parameters(), *(v for s in self.optimizer.state.values() for v in s.values())]
        plain = [t.full_tensor() if isinstance(t, DTensor) else t for t in tensors]
        return [t.detach().cpu().numpy().tobytes() for t in (*plain, torch.cuda.get_rng_state())]


@pytest.mark.parametrize("kind", ["fused", "foreach", "muon"])
@pytest.mark.parametrize("source", ["gradient", "layer", "state"])
def test_a_sharded_program_on_a_gpu_resumes_exactly(source: str, kind: str, tmp_path: Path) -> None:
    whole = Program(kind)
    for _ in range(STEPS):
        whole.step()
    for until in (1, 5, STEPS):
        program = Program(kind)
        with everstep.open(
            tmp_path / "run", model=program.model, optimizer=program.optimizer,
            settings=everstep.Settings(source=source, digest_every=4, buffer_bytes_max=64 << 20),  # type: ignore[arg-type]
        ) as run:  # fmt: skip
            for _ in range(run.resume(), until):
                program.step()
                run.commit()
            assert run.health.not_recorded == 0
    assert program.bits() == whole.bits()
