"""States that no step can carry: taken in parts if memory allows it, and if not, training does not pay for it."""

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import everstep
from everstep import api
from everstep.recording.plan import Planner
from everstep.ring.ring import Entry
from tests.late import LateMover

ROOT = Path(__file__).parents[2]
STEP_SECONDS = 0.001
STATE_BYTES = 8 * 4160 * 12
BUS = STATE_BYTES / (1.2 * STEP_SECONDS)
"""A state takes more than a step, its gradients less than half of one."""


class Program:
    """Eight layers of one size: any number of them makes a round."""

    def __init__(self) -> None:
        torch.manual_seed(1)
        self.model = nn.Sequential(*(nn.Linear(64, 64) for _ in range(8)))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-2)

    def step(self) -> None:
        self.model(torch.randn(8, 64)).square().mean().backward()
        self.optimizer.step()
        self.optimizer.zero_grad()

    def bits(self) -> list[bytes]:
        tensors = [*self.model.state_dict().values(), *(v for s in self.optimizer.state.values() for v in s.values())]
        return [tensor.numpy().tobytes() for tensor in (*tensors, torch.get_rng_state())]


def on_a_slow_bus(patch: pytest.MonkeyPatch) -> None:
    """And no memory to spare, which programs as small as this one would have."""

    def stepped(planner: Planner, _now: float, _waited: float = 0.0) -> None:
        planner._seconds.append(STEP_SECONDS)

    patch.setattr("everstep.ring.size.RING_BYTES_MIN", 0)
    patch.setattr("everstep.capture.measure.HEAD_BYTES", 4096)
    patch.setattr("everstep.recording.recording.HEAD_BYTES", 4096)
    patch.setattr(api, "mover", lambda _parameters: LateMover(BUS))
    patch.setattr(Planner, "stepped", stepped)


def opened(path: Path, program: Program, **settings: Any) -> everstep.Run:
    kept = everstep.Settings(**settings)
    return everstep.open(path, model=program.model, optimizer=program.optimizer, settings=kept)


def whole(steps: int) -> list[bytes]:
    program = Program()
    for _ in range(steps):
        program.step()
    return program.bits()


def newest(run: everstep.Run) -> Entry:
    return run._link.ring.read(run._link.tally.newest)


def child(path: str, steps: int) -> None:
    on_a_slow_bus(pytest.MonkeyPatch())
    program = Program()
    run = opened(Path(path), program, source="state", base_log_bytes_max=1 << 40)
    step, said = run.resume(), set[str]()
    while step < steps or not newest(run).low < newest(run).step <= step - 2:  # the disk wants a whole one now and then
        program.step()
        step = run.commit()
        said |= set(run.health.warnings)  # of which the oldest go
    run._recording.finish()  # type: ignore[union-attr]
    run._link.settle()
    sys.stdout.write(f"{step} {run.acknowledged('memory')} {run.health.not_recorded}\n")
    sys.stdout.write("\n".join(said))
    sys.stdout.flush()
    os.kill(os.getpid(), 9)


def test_whole_states_become_parts_and_records_and_come_back_from_memory(tmp_path: Path) -> None:
    for steps in (90, 170):  # the second goes on with what the first left
        code = f"from tests.exact.test_too_large import child; child({str(tmp_path / 'run')!r}, {steps})"
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        done = subprocess.run(
            [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False, timeout=120
        )
        assert done.returncode == -9, done.stderr
        first, *warnings = done.stdout.splitlines()
        step, memory, missed = map(int, first.split())
        assert (memory, missed) == (step, 0)
        assert any("states taken in parts" in text for text in warnings)
    program = Program()
    with opened(tmp_path / "run", program, source="state") as run:
        assert run.resume() == step
        assert run.ledger is not None
        assert all(item.origin.startswith(("memory", "record")) for item in run.ledger)
        assert program.bits() == whole(step)


def test_disk_and_log_are_right_across_the_turn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    on_a_slow_bus(monkeypatch)
    program = Program()
    with opened(tmp_path / "run", program, source="state") as run:
        run.resume()
        held = {0}
        for _ in range(40):
            program.step()
            run.commit()
            time.sleep(0.02)
            held.add(run.acknowledged("disk"))
        assert run.health.not_recorded == 0
    assert len(held) > 5
    for step in (40, *sorted(held)[::-5]):  # each begins a branch
        again = Program()
        with opened(tmp_path / "run", again) as run:
            assert run.resume(step=step) == step
            assert again.bits() == whole(step)


def test_memory_too_small_for_parts_is_said_and_costs_next_to_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Room for two areas and four records: a state in parts would need eight. Steps that wait for a whole state are far
    between, here for ever; the ring is full, and nothing is waited for."""
    on_a_slow_bus(monkeypatch)
    monkeypatch.setattr("everstep.recording.states.WAITING_SHARE", 1e-9)
    program = Program()
    limit = 2 * 430_000 + 4 * 160_000
    with opened(tmp_path / "run", program, buffer_bytes_max=limit) as run:
        run.resume()
        states = []
        for _ in range(120):
            program.step()
            run.commit()
            states.append(run._link.tally.newest)
        health = run.health
        assert run._link.areas.count == 2
        assert run._link.ring.data_bytes < 6 * STATE_BYTES // 3
    assert len(set(states)) < 12, states
    assert health.not_recorded > 50
    assert any("memory does not hold every step" in text for text in health.warnings)
    again = Program()
    with opened(tmp_path / "run", again) as run:
        step = run.resume()
        assert again.bits() == whole(step)


class Crowded(LateMover):
    """A device without memory to pack anything in."""

    asked = 0

    def take(self, what: str, *given: Any, **more: Any) -> None:
        if what == "snapshot":
            Crowded.asked += 1
            raise torch.OutOfMemoryError("none is left")
        super().take(what, *given, **more)


def test_no_memory_to_pack_a_state_costs_that_state_and_no_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_a_slow_bus(monkeypatch)
    monkeypatch.setattr(api, "mover", lambda _parameters: Crowded(0.6 * BUS))
    monkeypatch.setattr("everstep.recording.states.WAITING_SHARE", 1.0)
    monkeypatch.setattr(Crowded, "asked", 0)
    program = Program()
    with opened(tmp_path / "run", program, base_log_bytes_max=1 << 20) as run:
        run.resume()
        for _ in range(40):
            program.step()
            run.commit()
            time.sleep(0.01)
        health = run.health
    assert Crowded.asked == 1  # it is not asked again
    assert any("no memory to pack" in text for text in health.warnings)
    assert health.not_recorded == 0
    again = Program()
    with opened(tmp_path / "run", again) as run:
        assert run.resume() == 40
        assert again.bits() == whole(40)


def edited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[everstep.Run, Program]:
    """A run whose newest step only a state holds: weights were edited. A part of it is still to be packed."""
    on_a_slow_bus(monkeypatch)
    monkeypatch.setattr(api, "mover", lambda _parameters: Crowded(0.6 * BUS))
    monkeypatch.setattr("everstep.recording.states.States._later", lambda _states, _plan, _fixed: {0, 3})
    program = Program()
    run = opened(tmp_path / "run", program)
    run.resume()
    for at in range(5):
        if at == 4:
            with torch.no_grad():
                program.model[0].weight.mul_(0.5)
        program.step()
        run.commit()
    return run, program


def test_what_was_to_be_packed_is_copied_where_nobody_steps_any_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, program = edited(tmp_path, monkeypatch)
    with run:
        assert run.wait(timeout=60) == 5
        assert run.health.not_recorded == 0
    again = Program()
    with opened(tmp_path / "run", again) as run:
        assert run.resume() == 5
        assert again.bits() == program.bits()


def test_a_step_whose_state_could_not_be_packed_is_counted_as_not_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, program = edited(tmp_path, monkeypatch)
    with run:
        program.step()
        assert run.health.not_recorded == 1
        assert any("steps from 5 on were not recorded" in text for text in run.health.warnings)
        run.commit()
        assert run.wait(timeout=60) == 6
    again = Program()
    with opened(tmp_path / "run", again) as run:
        assert run.resume() == 6
        assert again.bits() == program.bits()
