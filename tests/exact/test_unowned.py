"""Optimizers that keep something for no parameter, under a text, and parameters whose names look like one."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from torch import nn

import everstep
from everstep.capture.roster import Roster
from everstep.cli.main import cli
from everstep.errors import Mismatch, Unsupported
from everstep.recover.unowned import Unowned


class Slowing(torch.optim.Optimizer):
    """Takes smaller steps each time. How small is no parameter's."""

    def __init__(self, params: Iterable[Any], key: Any = "pace") -> None:
        super().__init__(params, {"lr": 0.1})
        self.key = key

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        del closure
        state: dict[Any, Any] = self.state  # type: ignore[assignment]
        kept = state.setdefault(self.key, {"count": 0, "pace": torch.ones(2), "said": [None, "so"]})
        kept["count"] += 1
        kept["pace"].mul_(0.8)
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.sub_(parameter.grad, alpha=group["lr"] * float(kept["pace"][1]) / kept["count"])


def train(model: nn.Module, optimizer: torch.optim.Optimizer, path: Path, steps: int, source: Any = "gradient") -> int:
    settings = everstep.Settings(source=source)
    with everstep.open(path, model=model, optimizer=optimizer, settings=settings) as run:
        begun = run.resume()
        for at in range(begun, steps):
            torch.manual_seed(at)
            sum(p.square().mul(torch.rand_like(p)).sum() for p in model.parameters()).backward()  # type: ignore[union-attr]
            optimizer.step()
            optimizer.zero_grad()
            run.commit()
        run.wait(timeout=60)
    return begun


def bits(model: nn.Module, optimizer: torch.optim.Optimizer) -> str:
    torch.set_printoptions(precision=12)
    return repr(model.state_dict()) + repr(optimizer.state_dict()["state"])


def test_what_is_no_parameters_comes_back_too(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = nn.Linear(3, 2)
    optimizer = Slowing(model.parameters())
    assert train(model, optimizer, tmp_path / "run", 6) == 0
    again = nn.Linear(3, 2)
    other = Slowing(again.parameters())
    assert train(again, other, tmp_path / "run", 6) == 6
    assert bits(again, other) == bits(model, optimizer)


def test_under_what_is_neither_a_parameter_nor_a_text_it_is_refused(tmp_path: Path) -> None:
    model = nn.Linear(3, 2)
    with pytest.raises(Unsupported, match="under 7, which is neither a parameter nor a text"):
        train(model, Slowing(model.parameters(), key=7), tmp_path / "run", 3, source="state")


def test_a_name_that_begins_like_such_a_text_is_a_parameters(tmp_path: Path) -> None:
    def built() -> tuple[nn.Module, torch.optim.Optimizer]:
        model = nn.ModuleDict({"#odd": nn.Linear(3, 2)})
        return model, torch.optim.AdamW(model.parameters(), lr=0.1)

    model, optimizer = built()
    train(model, optimizer, tmp_path / "run", 5)
    again, other = built()
    assert train(again, other, tmp_path / "run", 5) == 5
    assert bits(again, other) == bits(model, optimizer)


def test_writers_that_differ_are_refused() -> None:
    found = Unowned()
    for pace, refused in ((0.5, False), (0.5, False), (0.25, True)):
        parameter = nn.Parameter(torch.zeros(1))
        optimizer = Slowing([parameter])
        optimizer.state["pace"] = {"pace": torch.tensor(pace)}  # type: ignore[index]
        roster = Roster({"w": parameter}, {}, {}, {"main": optimizer})
        if refused:
            with pytest.raises(Mismatch, match=r"under 'pace' differs from writer to writer.*not to be used"):
                found.add(roster)
        else:
            found.add(roster)


def test_it_cannot_be_exported(tmp_path: Path) -> None:
    model = nn.Linear(3, 2)
    train(model, Slowing(model.parameters()), tmp_path / "run", 2, source="state")
    command = ["export", str(tmp_path / "run"), str(tmp_path / "out"), "--format", "torch"]
    assert "keeps state under 'pace', for no parameter" in str(CliRunner().invoke(cli, command, obj={}).exception)
