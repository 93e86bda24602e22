"""Copies that finish later than the step they are of: what a GPU does, without one."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import everstep
from tests.late import LateMover

STEPS = 25


class Program:
    def __init__(self) -> None:
        torch.manual_seed(1)
        self.model = nn.Sequential(nn.Linear(16, 64), nn.BatchNorm1d(64), nn.Dropout(0.1), nn.Linear(64, 4))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-2)
        self.schedule = torch.optim.lr_scheduler.ExponentialLR(self.optimizer, 0.99)

    def step(self) -> None:
        self.model(torch.randn(8, 16)).square().mean().backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.schedule.step()

    def bits(self) -> list[bytes]:
        tensors = [*self.model.state_dict().values(), *(v for s in self.optimizer.state.values() for v in s.values())]
        return [tensor.numpy().tobytes() for tensor in (*tensors, torch.get_rng_state())]


Make = Callable[..., everstep.Run]


def opened(path: Path, program: Program, **settings: Any) -> everstep.Run:
    return everstep.open(
        path, model=program.model, optimizer=program.optimizer, state={"lr": program.schedule},
        settings=everstep.Settings(**settings),
    )  # fmt: skip


@pytest.mark.parametrize("source", ["gradient", "state"])
@pytest.mark.parametrize("buffer_bytes_max", [None, 1 << 20, 400_000])
def test_every_step_is_recorded_and_comes_back(
    source: str, buffer_bytes_max: int | None, tmp_path: Path, late: list[LateMover]
) -> None:
    whole = Program()
    for _ in range(STEPS):
        whole.step()
    for until in (1, 7, STEPS):
        program = Program()
        with opened(tmp_path / "run", program, source=source, buffer_bytes_max=buffer_bytes_max) as run:
            for step in range(run.resume(), until):
                program.step()
                assert run.commit() == step + 1
                if run._link.tally.newest >= 0 and run._link.areas.count > 1:
                    assert run.acknowledged("memory") >= step, "a step later at most"
            health = run.health
        if source == "gradient" or buffer_bytes_max != 400_000:
            assert (health.not_recorded, health.committed) == (0, until), health
        else:  # one area only, and the disk reads it: visibly not every state is taken
            assert health.committed == until
        assert not late[-1].pinned
    assert program.bits() == whole.bits()


def test_a_full_ring_gets_a_new_state_in_time(tmp_path: Path, late: list[LateMover]) -> None:
    program = Program()
    with opened(tmp_path / "run", program, buffer_bytes_max=1 << 20) as run:
        run.resume()
        for _ in range(200):
            program.step()
            run.commit()
        assert run.health.not_recorded == 0
        assert run.acknowledged("memory") >= 199
    assert everstep.restore(tmp_path / "run").step == 200


def test_gradients_that_were_written_to_are_not_vouched_for(tmp_path: Path, late: list[LateMover]) -> None:
    program = Program()
    with opened(tmp_path / "run", program) as run:
        run.resume()
        for at in range(9):
            program.step()
            run.commit()
            if at == 4:
                late[-1].untouched = False
        run.wait(timeout=30)
        assert any("written to while they were copied" in text for text in run.health.warnings)
        wanted = program.bits()
    again = Program()
    with opened(tmp_path / "run", again) as run:
        assert run.resume() == 9
        assert again.bits() == wanted


@pytest.mark.parametrize("source", ["gradient", "state"])
def test_a_state_that_was_edited_while_it_was_copied_is_not_vouched_for(
    source: str, tmp_path: Path, late: list[LateMover]
) -> None:
    program = Program()
    with opened(tmp_path / "run", program, source=source, buffer_bytes_max=1 << 20) as run:
        run.resume()
        for at in range(12):
            program.step()
            run.commit()
            if at % 3 == 1:
                with torch.no_grad():
                    program.model[0].weight.mul_(0.5)
        # Of a step that only its state held the trainer knows now that nothing does.
        assert run.health.not_recorded == (4 if source == "state" else 0)
        assert any("changed while its state was copied" in w for w in run.health.warnings) == (source == "state")
        wanted = program.bits()
        program.step()
        run.commit()
    again = Program()
    with opened(tmp_path / "run", again) as run:
        assert run.resume() == 13
        assert again.bits() == program.bits()
    del wanted
