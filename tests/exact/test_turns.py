"""Where a device has no memory to spare for gradients, whole states are taken instead, and nothing is lost by that."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import everstep
from everstep import api
from everstep.capture import bus
from everstep.recording import states
from everstep.ring.ring import STATE, UPDATE
from tests.exact.test_late import Program, opened
from tests.late import LateMover

ROOT = Path(__file__).parents[2]
COMPLAINT = "gradients wait"
BUS = 1e11


class Crowded(LateMover):
    """Has memory for the gradients of a few steps, and then none any more."""

    def __init__(self, bus_bytes_per_s: float = BUS) -> None:
        super().__init__(bus_bytes_per_s)
        self.steps = 0

    def settle(self) -> bool:
        self.steps += 1
        self.complaint = COMPLAINT if self.steps > 5 else None  # type: ignore[assignment]
        return super().settle()


def trained(path: Path, steps: int, mover: Crowded, **settings: Any) -> tuple[Program, everstep.Run, list[int]]:
    """And which kind of entry each step became."""
    api.mover = lambda _parameters: mover
    program, kinds = Program(), []
    run = opened(path, program, **settings)
    run.resume()
    for _ in range(steps):
        program.step()
        run.commit()
        kinds.append(run._link.ring.read(run._link.pen.next - 1).kind)
    return program, run, kinds


@pytest.fixture(autouse=True)
def _restored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api, "mover", api.mover)


def child(path: str, steps: int) -> None:
    program, run, kinds = trained(Path(path), steps, Crowded())
    assert run._recording is not None
    run._recording.finish()
    assert run.acknowledged("memory") == steps
    sys.stdout.write(f"{kinds.count(UPDATE)} {kinds.count(STATE)} {hash(tuple(program.bits()))}")
    sys.stdout.flush()
    os.kill(os.getpid(), 9)


def test_a_killed_trainer_comes_back_from_the_states_that_took_the_place_of_gradients(tmp_path: Path) -> None:
    code = f"from tests.exact.test_turns import child; child({str(tmp_path / 'run')!r}, 60)"
    environment = {**os.environ, "PYTHONHASHSEED": "0", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=120, cwd=ROOT)
    assert done.returncode == -9, done.stderr
    gradients, whole, _ = (int(word) for word in done.stdout.split())
    assert gradients >= 8, "until it is known what a state costs"
    assert whole >= 30
    program = Program()
    with opened(tmp_path / "run", program) as run:
        assert run.resume() == 60
        resumed = program.bits()
    uninterrupted = Program()
    for _ in range(60):
        uninterrupted.step()
    assert resumed == uninterrupted.bits()


def test_the_disk_goes_on_across_the_turn_and_all_of_it_is_said(tmp_path: Path) -> None:
    program, run, kinds = trained(tmp_path / "run", 60, Crowded())
    assert run.wait(timeout=60) == 60
    assert kinds[-1] == STATE
    health = run.health
    assert states.WHOLE in health.warnings
    assert COMPLAINT not in health.warnings
    assert health.not_recorded == 0
    run.close()
    again = Program()
    with opened(tmp_path / "run", again) as run:
        assert run.resume() == 60
        assert again.bits() == program.bits()
        again.step()
        run.commit()
        assert run.wait(timeout=60) == 61
    resumed, uninterrupted = again.bits(), Program()
    for _ in range(61):
        uninterrupted.step()
    assert resumed == uninterrupted.bits()


@pytest.mark.parametrize(
    ("settings", "bus"),
    [
        ({"source": "gradient"}, BUS),
        ({"gradients": "bf16"}, BUS),
        ({}, 1e5),
        ({"buffer_bytes_max": 400_000}, BUS),
    ],
    ids=["it was told to", "it rounds them", "a step is too short for a state", "there is no memory for states"],
)
def test_it_keeps_to_gradients_and_says_what_they_cost(settings: dict[str, Any], bus: float, tmp_path: Path) -> None:
    _, run, kinds = trained(tmp_path / "run", 60, Crowded(bus), **settings)
    assert kinds.count(UPDATE) > 40
    assert COMPLAINT in run.health.warnings
    assert states.WHOLE not in run.health.warnings
    run.close()


@pytest.mark.gpu
def test_on_a_gpu_states_take_the_place_of_gradients_that_training_would_wait_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"ROOMY": 1 << 40, "ENOUGH": 1 << 40, "SMALL_BYTES": 0}.items():
        monkeypatch.setattr(bus, name, value)
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(512, 2048), nn.GELU(), nn.Linear(2048, 512)).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    with everstep.open(tmp_path / "run", model=model, optimizer=optimizer) as run:
        run.resume()
        for _ in range(60):
            for _ in range(4):  # steps long enough for a state
                model(torch.randn(4096, 512, device="cuda")).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            run.commit()
        assert states.WHOLE in run.health.warnings
        assert run.health.not_recorded == 0
        wanted = bits(model, optimizer)
    again = nn.Sequential(nn.Linear(512, 2048), nn.GELU(), nn.Linear(2048, 512)).cuda()
    theirs = torch.optim.AdamW(again.parameters(), fused=True)
    with everstep.open(tmp_path / "run", model=again, optimizer=theirs) as run:
        assert run.resume() == 60
        assert bits(again, theirs) == wanted


def bits(model: nn.Module, optimizer: torch.optim.Optimizer) -> list[bytes]:
    tensors = [*model.parameters(), *(value for held in optimizer.state.values() for value in held.values())]
    return [tensor.detach().cpu().numpy().tobytes() for tensor in tensors]
