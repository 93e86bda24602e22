"""What lies in flat buckets is seen as parameters of an ordinary optimizer, and what is restored gets back there."""

from collections.abc import Callable
from pathlib import Path
from typing import Literal

import pytest
import torch
from torch import nn

import everstep
from everstep.capture.buckets import Bucket, Buckets
from everstep.capture.roster import call_the_roll, kind_of
from everstep.errors import CannotReplay, Misdescribed, Mismatch
from everstep.types import Box, Local, Piece


def lying(name: str, shape: tuple[int, ...], first: int, size: int) -> Local:
    """All of a tensor, from element `first` of a bucket of `size` on."""
    strides = (shape[1], 1) if len(shape) == 2 else (1,)
    return Local(name, shape, (size,), (Piece(Box((0,) * len(shape), shape), first, strides),))


WEIGHT, BIAS = lying("weight", (3, 2), 0, 12), lying("bias", (3,), 8, 12)
"""With padding between them and behind them."""


class Program:
    """A linear layer whose weight and bias an optimizer steps as one flat tensor."""

    def __init__(
        self, seed: int = 0, make: Callable[..., torch.optim.Optimizer] = torch.optim.AdamW, device: str = "cpu"
    ) -> None:
        torch.manual_seed(seed)
        self.model = nn.Linear(2, 3).to(device)
        self.flat = nn.Parameter(torch.zeros(12, device=device))
        with torch.no_grad():
            self.flat[:6], self.flat[8:11] = self.model.weight.flatten(), self.model.bias
        self.optimizer = make([self.flat], lr=0.1)
        self.seen = Buckets(
            self.optimizer, [[Bucket(self.flat, {"bias": BIAS, "weight": WEIGHT})]], arrived=self.put_together
        )

    def put_together(self) -> None:
        with torch.no_grad():
            self.model.weight.copy_(self.flat[:6].view(3, 2))
            self.model.bias.copy_(self.flat[8:11])

    def step(self, at: int) -> None:
        x = torch.randn(4, 2, generator=torch.Generator().manual_seed(at))
        self.model(x.to(self.flat.device)).square().sum().backward()
        self.flat.grad = torch.zeros_like(self.flat)
        assert self.model.weight.grad is not None
        assert self.model.bias.grad is not None
        self.flat.grad[:6], self.flat.grad[8:11] = self.model.weight.grad.flatten(), self.model.bias.grad
        self.optimizer.step()
        self.model.zero_grad()
        self.put_together()


def test_parts_of_a_bucket_are_parameters_and_the_bucket_is_none() -> None:
    program = Program()
    roster = call_the_roll(program.model, program.seen)
    assert {name: tuple(held.shape) for name, held in roster.parameters.items()} == {"weight": (6,), "bias": (3,)}
    assert roster.groups() == [("main", [["weight", "bias"]])]
    assert roster.parameters["bias"].data_ptr() == program.flat[8:].data_ptr()
    assert roster.layout["bias"] == Local("bias", (3,), (3,), (Piece(Box((0,), (3,)), 0, (1,)),))
    assert kind_of(program.seen) == "torch.optim.adamw.AdamW"


def test_what_other_ranks_hold_is_no_parameter_here() -> None:
    program = Program()
    elsewhere = {"weight": WEIGHT, "bias": Local("bias", (3,), (12,), ())}
    roster = call_the_roll(program.model, Buckets(program.optimizer, [[Bucket(program.flat, elsewhere)]]))
    assert list(roster.parameters) == ["weight"]


def test_hyper_parameters_are_the_optimizers_own() -> None:
    program = Program()
    program.optimizer.param_groups[0]["lr"] = 0.5
    assert program.seen.param_groups[0]["lr"] == 0.5
    program.seen.param_groups[0]["lr"] = 0.25
    assert program.optimizer.param_groups[0]["lr"] == 0.25
    assert program.optimizer.param_groups[0]["params"] == [program.flat]


@pytest.mark.parametrize("held", [
    {"weight": WEIGHT, "bias": lying("bias", (3,), 5, 12)},
    {"weight": WEIGHT, "bias": lying("bias", (3,), 10, 12)},
    {"weight": WEIGHT, "bias": lying("bias", (3,), 8, 11)},
    {"weight": Local("weight", (3, 2), (12,), (Piece(Box((0, 0), (3, 2)), 0, (4, 1)),))},
], ids=["overlapping", "beyond the end", "of another bucket", "in several stretches"])  # fmt: skip
def test_what_cannot_lie_in_a_bucket_is_refused(held: dict[str, Local]) -> None:
    program = Program()
    with pytest.raises(Misdescribed, match=r"weight|bias"):
        Buckets(program.optimizer, [[Bucket(program.flat, held)]])


def test_a_tensor_in_two_buckets_and_groups_that_do_not_fit_are_refused() -> None:
    program = Program()
    bucket = Bucket(program.flat, {"weight": WEIGHT})
    with pytest.raises(Misdescribed, match="'weight' lies in two buckets"):
        Buckets(program.optimizer, [[bucket, bucket]])
    with pytest.raises(Misdescribed, match="2 groups of buckets for an optimizer of 1"):
        Buckets(program.optimizer, [[bucket], []])


class Mine(torch.optim.AdamW):
    """Not torch's own: only the program can replay it."""


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("source", ["gradient", "state"])
@pytest.mark.parametrize("make", [torch.optim.AdamW, torch.optim.SGD, Mine])
def test_training_goes_on_to_the_bit(
    make: Callable[..., torch.optim.Optimizer], source: Literal["gradient", "state"], device: str, tmp_path: Path
) -> None:
    program, unbroken = Program(0, make, device), Program(0, make, device)
    settings = everstep.Settings(source=source)
    with everstep.open(tmp_path / "run", model=program.model, optimizer=program.seen, settings=settings) as run:
        assert run.resume() == 0
        for at in range(5):
            program.step(at)
            run.commit()
        run.wait(timeout=30)
        assert source == "state" or run.health.bases == 1
    again = Program(1, make, device)
    with everstep.open(tmp_path / "run", model=again.model, optimizer=again.seen, settings=settings) as run:
        assert run.resume() == 5
        again.step(5)
        run.commit()
    for at in range(6):
        unbroken.step(at)
    assert torch.equal(again.flat, unbroken.flat)
    assert torch.equal(again.model.weight, unbroken.model.weight)
    assert str(again.optimizer.state_dict()) == str(unbroken.optimizer.state_dict())


def test_state_that_one_bucket_has_no_place_for_is_refused() -> None:
    program = Program()
    program.step(0)
    roster = call_the_roll(program.model, program.seen)
    weight, bias = roster.parameters["weight"], roster.parameters["bias"]
    for parameter in (weight, bias):
        program.seen.state[parameter] = {"step": torch.tensor(3.0), "exp_avg": torch.ones(parameter.shape)}
    program.seen.state[bias]["step"] = torch.tensor(2.0)
    with pytest.raises(Mismatch, match=r"'step' of 'bias' is 2\.0"):
        program.seen.settle()
    del program.seen.state[bias]["step"]
    with pytest.raises(Mismatch, match="'bias' has other optimizer state than 'weight'"):
        program.seen.settle()


def test_gradients_of_a_part_of_a_bucket_are_not_replayed() -> None:
    program = Program()
    weight = call_the_roll(program.model, program.seen).parameters["weight"]
    weight.grad = torch.ones(6)
    with pytest.raises(CannotReplay, match="'weight'"):
        program.seen.step()
