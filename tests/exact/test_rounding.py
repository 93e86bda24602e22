"""Gradients that are to be rounded are rounded at every step, recorded or not: training does not depend on how much
room there was, and replicas consume the like."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import everstep
from everstep.capture import mover

STEPS = 8


class Program:
    def __init__(self) -> None:
        torch.manual_seed(1)
        self.model = nn.Sequential(nn.Linear(16, 33), nn.Tanh(), nn.Linear(33, 5))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-2)

    def backward(self) -> None:
        self.optimizer.zero_grad()
        self.model(torch.randn(8, 16)).square().mean().backward()

    def bits(self) -> list[bytes]:
        return [tensor.detach().numpy().tobytes() for tensor in self.model.parameters()]


@pytest.fixture
def rounded() -> list[bytes]:
    """What training makes of gradients that are rounded at every step."""
    program = Program()
    for _ in range(STEPS):
        program.backward()
        for parameter in program.model.parameters():
            assert parameter.grad is not None
            parameter.grad.copy_(parameter.grad.bfloat16())
        program.optimizer.step()
    return program.bits()


def full(run: everstep.Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run._recording._hooks, "_room", lambda _nbytes: None)  # type: ignore[union-attr]


def failing(run: everstep.Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def take(*_given: Any, **_more: Any) -> None:
        raise torch.OutOfMemoryError("none is left")

    monkeypatch.setattr(run._recording._mover, "take", take)  # type: ignore[union-attr]


def nothing(run: everstep.Run, monkeypatch: pytest.MonkeyPatch) -> None:
    del run, monkeypatch


@pytest.mark.parametrize("harm", [nothing, full, failing])
def test_what_is_trained_does_not_depend_on_what_is_recorded(
    harm: Any, rounded: list[bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mover, "ROUNDED_AT_ONCE", 100)
    program = Program()
    settings = everstep.Settings(gradients="bf16", stall_ms_max=0)
    with everstep.open(tmp_path / "run", model=program.model, optimizer=program.optimizer, settings=settings) as run:
        run.resume()
        for at in range(STEPS):
            program.backward()
            with monkeypatch.context() as harmed:
                if at in (2, 3, 5):
                    harm(run, harmed)
                program.optimizer.step()
                run.commit()
        assert program.bits() == rounded
        assert run.wait(timeout=60) == STEPS
    again = Program()
    with everstep.open(tmp_path / "run", model=again.model, optimizer=again.optimizer) as run:
        assert run.resume() == STEPS
        assert again.bits() == rounded


def test_a_step_that_is_kept_as_a_base_is_rounded_as_well(tmp_path: Path) -> None:
    """Whatever made it one on this rank: on the others it may be a record."""
    found = []
    for edits in (False, True):
        program = Program()
        settings = everstep.Settings(gradients="bf16")
        path = tmp_path / f"run{edits}"
        with everstep.open(path, model=program.model, optimizer=program.optimizer, settings=settings) as run:
            run.resume()
            program.backward()
            if edits:
                program.model[0].weight.data.add_(0.0)
                run._recording._hooks.why_base = "somebody wrote to them"  # type: ignore[union-attr]
            program.optimizer.step()
            run.commit()
            found.append(program.bits())
    assert found[0] == found[1]
