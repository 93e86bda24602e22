"""Whatever changes the state behind the optimizer's back is noticed, and the step becomes a base, never a wrong
replay.
"""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from tests.faults.conftest import Small


def edit_weights(program: Small) -> None:
    with torch.no_grad():
        program.model[0].weight.mul_(0.5)


def edit_through_data(program: Small) -> None:
    program.model[2].bias.data.copy_(torch.ones(2))


def load_weights(program: Small) -> None:
    program.model.load_state_dict(Small(seed=3).model.state_dict())


def edit_through_numpy(program: Small) -> None:
    program.model[0].weight.detach().numpy()[0, 0] += 1.0


def load_optimizer(program: Small) -> None:
    state = program.optimizer.state_dict()
    for held in state["state"].values():
        held["exp_avg"] = torch.zeros_like(held["exp_avg"])
    program.optimizer.load_state_dict(state)


def edit_moments(program: Small) -> None:
    next(iter(program.optimizer.state.values()))["exp_avg_sq"].add_(1e-3)


EDITS = {
    edit.__name__: edit
    for edit in (edit_weights, edit_through_data, load_weights, edit_through_numpy, load_optimizer, edit_moments)
}


@pytest.mark.parametrize("when", ["before commit", "after commit", "before the step"])
@pytest.mark.parametrize("edit", EDITS)
def test_an_edit_is_noticed_and_kept(edit: str, when: str, tmp_path: Path) -> None:
    program = Small()
    expected = {}
    with program.open(tmp_path / "run") as run:
        run.resume()
        for at in range(8):
            if at == 4 and when == "before the step":
                EDITS[edit](program)
            program.model(torch.randn(4, 8)).square().sum().backward()
            program.optimizer.step()
            if at == 4 and when == "before commit":
                EDITS[edit](program)
            program.optimizer.zero_grad()
            expected[run.commit()] = program.bits()
            run.wait(timeout=30)
            if at == 4 and when == "after commit":
                EDITS[edit](program)
        at = 6 if when == "after commit" else 5
        assert any(f"step {at} is kept as a base" in text and "changed outside" in text for text in run.health.warnings)
    for step in (8, 6, 5, 4):
        again = Small(seed=9)
        with again.open(tmp_path / "run") as run:
            if step == 8:
                assert run.resume() == 8
            else:
                assert run.resume(step) == step
            assert again.bits() == expected[step]
        if step == 8:
            continue
        break


def test_a_closure_makes_the_step_a_base(tmp_path: Path, small: Callable[..., Small]) -> None:
    program = small()
    program.optimizer = torch.optim.LBFGS(program.model.parameters(), lr=0.1, max_iter=3)
    inputs = torch.randn(4, 8)

    def closure() -> torch.Tensor:
        program.optimizer.zero_grad()
        loss = program.model(inputs).square().sum()
        loss.backward()
        return loss

    with program.open(tmp_path / "run") as run:
        run.resume()
        for _ in range(3):
            program.optimizer.step(closure)
            run.commit()
            run.wait(timeout=30)
        assert any("called with a closure" in text for text in run.health.warnings)
    again = small(seed=5)
    again.optimizer = torch.optim.LBFGS(again.model.parameters(), lr=0.1, max_iter=3)
    with again.open(tmp_path / "run") as run:
        assert run.resume() == 3
        program.optimizer.step(closure)
        program, before = again, program
        again.optimizer.step(closure)
        assert [p.tolist() for p in again.model.parameters()] == [p.tolist() for p in before.model.parameters()]
