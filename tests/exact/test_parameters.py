"""Parameters of every kind come back as they were: dtype, shape, strides, sharing, and state that appears late."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import SGD, AdamW, Optimizer, SparseAdam

import everstep


class Odd(nn.Module):
    """Every kind of parameter at once."""

    def __init__(self) -> None:
        super().__init__()
        self.as_single = nn.Parameter(torch.randn(5, 3))
        self.as_half = nn.Parameter(torch.randn(7).to(torch.float16))
        self.as_brain = nn.Parameter(torch.randn(9).to(torch.bfloat16))
        self.as_double = nn.Parameter(torch.randn(4, dtype=torch.float64))
        self.as_complex = nn.Parameter(torch.randn(6, dtype=torch.complex64))
        self.empty = nn.Parameter(torch.empty(0, 4))
        self.scalar = nn.Parameter(torch.tensor(0.5))
        self.turned = nn.Parameter(torch.randn(8, 5).t())
        self.channels = nn.Parameter(torch.randn(2, 3, 4, 4).to(memory_format=torch.channels_last))
        self.frozen = nn.Parameter(torch.randn(3), requires_grad=False)
        self.sometimes = nn.Parameter(torch.randn(4))

    def loss(self, at: int) -> torch.Tensor:
        total = sum(
            (p.abs().float() if not p.is_complex() else torch.view_as_real(p)).square().sum()
            for name, p in self.named_parameters()
            if p.requires_grad and name != "sometimes"
        )
        assert isinstance(total, torch.Tensor)
        return total + (self.sometimes.square().sum() if at % 3 == 2 else 0.0)


def bits(model: nn.Module, optimizer: Optimizer) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, p in model.named_parameters():
        found[name] = (p.dtype, p.shape, p.stride(), raw(p))
        for key, value in optimizer.state.get(p, {}).items():
            found[f"{name}/{key}"] = (
                (value.dtype, value.stride(), raw(value)) if isinstance(value, torch.Tensor) else value
            )
    return found


def raw(tensor: torch.Tensor) -> bytes:
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


@pytest.mark.parametrize(
    "make",
    [
        lambda model: AdamW(model.parameters(), lr=0.01),
        lambda model: AdamW([p for p in model.parameters() if not p.is_complex() and p.dim()], lr=0.01, foreach=True),
        lambda model: SGD(model.parameters(), lr=0.01, momentum=0.9),
    ],
    ids=["adamw", "foreach", "sgd"],
)
def test_parameters_of_every_kind_resume_exactly(make: Callable[[nn.Module], Optimizer], tmp_path: Path) -> None:
    def train(until: int, path: Path | None) -> dict[str, Any]:
        torch.manual_seed(1)
        model = Odd()
        optimizer = make(model)
        run = everstep.open(path, model=model, optimizer=optimizer) if path else None
        for at in range(run.resume() if run else 0, until):
            model.loss(at).backward()
            optimizer.step()
            optimizer.zero_grad()
            if run:
                run.commit()
        if run:
            run.close()
        return bits(model, optimizer)

    for until in (1, 2, 3, 7):
        found = train(until, tmp_path / "run")
    assert found == train(7, None)


def test_a_group_added_later_is_kept_as_a_base_and_resumed(tmp_path: Path) -> None:
    def build(groups: int) -> tuple[nn.Module, Optimizer]:
        torch.manual_seed(2)
        model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
        optimizer = AdamW(model[0].parameters(), lr=0.01)
        if groups == 2:
            optimizer.add_param_group({"params": model[1].parameters(), "lr": 0.1})
        return model, optimizer

    def step(model: nn.Module, optimizer: Optimizer) -> None:
        model(torch.ones(2, 3)).square().sum().backward()
        optimizer.step()
        model.zero_grad()

    model, optimizer = build(1)
    with everstep.open(tmp_path / "run", model=model, optimizer=optimizer) as run:
        run.resume()
        for at in range(6):
            if at == 3:
                optimizer.add_param_group({"params": model[1].parameters(), "lr": 0.1})
            step(model, optimizer)
            run.commit()
        run.wait(timeout=30)
        assert any("step 4 is kept as a base: the param groups changed" in text for text in run.health.warnings)
    again, other = build(2)
    with everstep.open(tmp_path / "run", model=again, optimizer=other) as run:
        assert run.resume() == 6
        assert bits(again, other) == bits(model, optimizer)


@pytest.mark.parametrize(("before", "after"), [(None, 3), (3, None), (3, 5)], ids=["added", "removed", "resized"])
def test_a_step_that_changes_which_buffers_there_are_is_kept_as_a_base(
    tmp_path: Path, before: int | None, after: int | None
) -> None:
    """Resuming asks for the same buffers, and it asks the base."""

    def build(length: int | None, fill: float) -> tuple[nn.Module, Optimizer]:
        torch.manual_seed(2)
        model = nn.Linear(3, 3)
        model.register_buffer("seen", None if length is None else torch.full((length,), fill))
        return model, AdamW(model.parameters(), lr=0.01)

    model, optimizer = build(before, 1.0)
    with everstep.open(tmp_path / "run", model=model, optimizer=optimizer) as run:
        run.resume()
        for at in range(5):
            if at == 2:
                model.seen = None if after is None else torch.full((after,), 2.0)
            model(torch.ones(2, 3)).square().sum().backward()
            optimizer.step()
            model.zero_grad()
            run.commit()
        run.wait(timeout=30)
        assert any("step 3 is kept as a base: a buffer was added" in text for text in run.health.warnings)
    again, other = build(after, 0.0)
    with everstep.open(tmp_path / "run", model=again, optimizer=other) as run:
        assert run.resume() == 5
        assert bits(again, other) == bits(model, optimizer)
        assert after is None or torch.equal(again.seen, model.seen)


def test_sparse_gradients_are_kept_as_bases(tmp_path: Path) -> None:
    torch.manual_seed(3)
    model = nn.Embedding(10, 4, sparse=True)
    optimizer = SparseAdam(model.parameters(), lr=0.01)
    with everstep.open(tmp_path / "run", model=model, optimizer=optimizer) as run:
        run.resume()
        for at in range(3):
            model(torch.tensor([at, at + 1])).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            run.commit()
            run.wait(timeout=30)
    torch.manual_seed(4)
    again = nn.Embedding(10, 4, sparse=True)
    other = SparseAdam(again.parameters(), lr=0.01)
    with everstep.open(tmp_path / "run", model=again, optimizer=other) as run:
        assert run.resume() == 3
        assert bits(again, other) == bits(model, optimizer)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_learning_rate_held_as_a_tensor_resumes_exactly(dtype: torch.dtype, tmp_path: Path) -> None:
    def train(until: int, path: Path | None) -> dict[str, Any]:
        torch.manual_seed(5)
        model = nn.Linear(33, 7)
        optimizer = AdamW(model.parameters(), lr=torch.tensor(0.01, dtype=dtype))
        scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
        run = everstep.open(path, model=model, optimizer=optimizer, state={"lr": scheduler}) if path else None
        for _ in range(run.resume() if run else 0, until):
            model(torch.ones(4, 33)).square().sum().backward()
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
            if run:
                run.commit()
        if run:
            run.close()
        return bits(model, optimizer)

    for until in (2, 5, 8):
        found = train(until, tmp_path / "run")
    assert found == train(8, None)
