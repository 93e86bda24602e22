"""A step may be many updates: an optimizer for each parameter, or many steps between two commits."""

from pathlib import Path

import pytest
import torch
from torch import nn

import everstep

LAYERS = 20


class Program:
    def __init__(self, kind: str, seed: int = 0) -> None:
        torch.manual_seed(seed)
        self.model = nn.Sequential(*(nn.Linear(3, 3) for _ in range(LAYERS)))
        self.optimizers = (
            {f"of {name}": torch.optim.AdamW([p], lr=1e-2) for name, p in self.model.named_parameters()}
            if kind == "an optimizer for each" else {"main": torch.optim.AdamW(self.model.parameters(), lr=1e-2)}
        )  # fmt: skip
        self.often = 1 if kind == "an optimizer for each" else 2 * LAYERS

    def step(self, at: int) -> None:
        for more in range(self.often):
            x = torch.randn(2, 3, generator=torch.Generator().manual_seed(100 * at + more))
            self.model(x).square().sum().backward()
            for optimizer in self.optimizers.values():
                optimizer.step()
            self.model.zero_grad()

    def held(self) -> list[torch.Tensor]:
        states = [
            held[key] for optimizer in self.optimizers.values()
            for held in optimizer.state.values() for key in sorted(held)
        ]  # fmt: skip
        return [*self.model.parameters(), *states]


@pytest.mark.parametrize("kind", ["an optimizer for each", "many steps"])
def test_a_step_of_many_updates_is_recorded_and_replayed(kind: str, tmp_path: Path) -> None:
    program, again = Program(kind), Program(kind, seed=1)
    settings = everstep.Settings(buffer_bytes_max=1 << 20)  # so that a step's gradients come to the ring's end, too
    with everstep.open(tmp_path, model=program.model, optimizer=program.optimizers, settings=settings) as run:
        run.resume()
        for at in range(12):
            program.step(at)
            run.commit()
            run.wait(timeout=60)
        assert run.health.not_recorded == 0
        assert run.health.error is None
    with everstep.open(tmp_path, model=again.model, optimizer=again.optimizers, settings=settings) as run:
        assert run.resume() == 12
    assert all(map(torch.equal, again.held(), program.held()))
