"""A small program for tests of what goes wrong."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import everstep
from everstep import api
from everstep.store.disk import LocalDisk, created


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
    """Put another disk between the run and its directory."""

    def install(wrap: Callable[[LocalDisk], Any]) -> list[Any]:
        made: list[Any] = []

        def replaced(path: str) -> Any:
            made.append(wrap(created(path)))
            return made[-1]

        monkeypatch.setattr(api, "created", replaced)
        return made

    return install
