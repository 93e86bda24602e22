"""A small program for tests of what goes wrong."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import everstep
from everstep.keeper import launch
from everstep.store.disk import LocalDisk, existing
from tests.beside import keep_here


class Small:
    """A model, an optimizer and a step."""

    def __init__(self, seed: int = 0, width: int = 8) -> None:
        torch.manual_seed(seed)
        self.model = nn.Sequential(nn.Linear(width, width), nn.Tanh(), nn.Linear(width, 2))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.01)
        self.width = width

    def open(self, path: Path | str, **options: Any) -> everstep.Run:
        return everstep.open(path, model=self.model, optimizer=self.optimizer, **options)

    def step(self) -> None:
        self.model(torch.randn(4, self.width)).square().sum().backward()
        self.optimizer.step()
        self.optimizer.zero_grad()

    def bits(self) -> list[bytes]:
        tensors = [*self.model.parameters(), *(v for s in self.optimizer.state.values() for v in s.values())]
        return [tensor.detach().numpy().tobytes() for tensor in tensors]


@pytest.fixture
def small() -> Callable[..., Small]:
    return Small


@pytest.fixture
def around(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[LocalDisk], Any]], list[Any]]:
    """Put another disk between the keeper and the run's directory."""

    def install(wrap: Callable[[LocalDisk], Any]) -> list[Any]:
        made: list[Any] = []

        def replaced(path: str) -> Any:
            made.append(wrap(existing(path)))
            return made[-1]

        monkeypatch.setattr(launch, "start", keep_here(replaced))
        return made

    return install
