"""Gradients that are sent during backward: whatever happens to them until the optimizer consumes them, the step comes
back as it was."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import everstep
from everstep.capture import layers
from tests.late import LateMover

STEPS = 14
Loop = Callable[["Program", int], None]


class Program:
    def __init__(self, *, optimizers: int = 1) -> None:
        torch.manual_seed(3)
        self.model = nn.ModuleDict({
            "first": nn.Linear(8, 32), "norm": nn.LayerNorm(32), "last": nn.Linear(32, 8), "side": nn.Linear(8, 8)
        })  # fmt: skip
        self.model["norm"].bias.requires_grad_(False)
        parts = [list(self.model.parameters())] if optimizers == 1 else [
            list(self.model["first"].parameters()), [p for n, p in self.model.named_parameters() if "first" not in n]
        ]  # fmt: skip
        self.optimizers = {str(at): torch.optim.AdamW(part, lr=1e-2) for at, part in enumerate(parts)}

    def loss(self, at: int) -> torch.Tensor:
        x = torch.randn(4, 8)
        y = self.model["last"](torch.tanh(self.model["norm"](self.model["first"](x))))
        return (self.model["side"](y) if at % 3 else y).square().mean()  # not every layer is used at every step

    def step(self) -> None:
        for optimizer in self.optimizers.values():
            optimizer.step()
            optimizer.zero_grad()

    def bits(self) -> list[bytes]:
        state = [v for o in self.optimizers.values() for s in o.state.values() for v in s.values()]
        return [t.detach().numpy().tobytes() for t in (*self.model.parameters(), *state, torch.get_rng_state())]


def plain(program: Program, at: int) -> None:
    program.loss(at).backward()
    program.step()


def accumulated(program: Program, at: int) -> None:
    for micro in range(3):
        program.loss(at + micro).backward()
    program.step()


def clipped(program: Program, at: int) -> None:
    program.loss(at).backward()
    nn.utils.clip_grad_norm_(program.model.parameters(), 0.1)
    program.step()


def replaced(program: Program, at: int) -> None:
    program.loss(at).backward()
    first = program.model["first"].weight
    assert first.grad is not None
    first.grad = first.grad * 2
    program.step()


def abandoned(program: Program, at: int) -> None:
    if at % 4 == 2:
        program.loss(at).backward()  # nobody steps: a skipped batch
        program.model.zero_grad()
    program.loss(at).backward()
    program.step()


def zeroed_in_place(program: Program, _at: int) -> None:
    program.loss(1).backward()  # all layers: a gradient of zeros is not None, and no checkpoint holds the difference
    for optimizer in program.optimizers.values():
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)


def opened(path: Path, program: Program, **settings: Any) -> everstep.Run:
    settings = {"source": "layer", "buffer_bytes_max": 1 << 20, **settings}
    return everstep.open(
        path, model=program.model, optimizer=program.optimizers, settings=everstep.Settings(**settings)
    )


@pytest.mark.parametrize("bucket_bytes", [1, 3000, 1 << 20])
@pytest.mark.parametrize("optimizers", [1, 2])
@pytest.mark.parametrize("loop", [plain, accumulated, clipped, replaced, abandoned, zeroed_in_place])
def test_a_step_that_was_sent_by_layer_comes_back(
    loop: Loop, optimizers: int, bucket_bytes: int, tmp_path: Path, late: list[LateMover],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(layers, "BUCKET_BYTES", bucket_bytes)
    whole = Program(optimizers=optimizers)
    for at in range(STEPS):
        loop(whole, at)
    for until in (1, 6, STEPS):
        program = Program(optimizers=optimizers)
        with opened(tmp_path / "run", program) as run:
            for step in range(run.resume(), until):
                loop(program, step)
                run.commit()
            assert run.health.not_recorded == 0
            assert not run.health.warnings
    assert program.bits() == whole.bits()
    early = sum(mover.early for mover in late)
    assert early > 0 if loop in (plain, abandoned) else True
    assert early == 0 if loop is clipped and bucket_bytes == 1 else True


def test_a_commit_between_backward_and_step_loses_nothing(tmp_path: Path, late: list[LateMover]) -> None:
    program = Program()
    with opened(tmp_path / "run", program) as run:
        run.resume()
        plain(program, 1)
        for at in range(1, 9):
            loss = program.loss(1)
            if at % 2:
                loss.backward()
                run.commit()  # of the step before
            else:
                run.commit()
                loss.backward()
            program.step()
        run.commit()
        assert run.health.not_recorded == 0
    again = Program()
    with opened(tmp_path / "run", again) as run:
        assert run.resume() == 9
        assert again.bits() == program.bits()
    assert late[0].early > 0


def test_a_gradient_that_cannot_be_sent_does_not_stop_backward(
    tmp_path: Path, late: list[LateMover], monkeypatch: pytest.MonkeyPatch
) -> None:
    program = Program()
    with opened(tmp_path / "run", program) as run:
        run.resume()
        for at in range(3):
            plain(program, at)
            run.commit()

        def broken(*_: Any) -> None:
            raise RuntimeError("no such stream")

        monkeypatch.setattr(late[0], "in_place", broken)
        for at in range(3, 6):
            plain(program, at)
            run.commit()
        assert any("could not be sent during backward" in text for text in run.health.warnings)
        assert run.health.not_recorded == 0
    again = Program()
    with opened(tmp_path / "run", again) as run:
        assert run.resume() == 6
        assert again.bits() == program.bits()


def test_without_a_device_nothing_is_sent_early_and_all_is_as_ever(tmp_path: Path) -> None:
    program = Program()
    with opened(tmp_path / "run", program) as run:
        run.resume()
        for at in range(5):
            accumulated(program, at)
            run.commit()
    again = Program()
    with opened(tmp_path / "run", again) as run:
        assert run.resume() == 5
        assert again.bits() == program.bits()


def test_rounding_and_sending_early_exclude_each_other() -> None:
    with pytest.raises(ValueError, match="not before backward ended"):
        everstep.Settings(source="layer", gradients="bf16")
