"""A state that is taken in parts over several steps, repaired by the records of those steps: exact, from memory."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from everstep import api
from everstep.recording.plan import Plan, Planner
from tests.exact.test_late import Program, opened
from tests.late import LateMover

ROOT = Path(__file__).parents[2]


def in_parts(rounds: int) -> None:
    """Every state of the memory tier is spread over so many steps."""

    def plan(_planner: Planner, described: list[object], gradient_bytes: int, *, spread: bool) -> Plan:
        everything = tuple(range(len(described)))
        if not spread or not gradient_bytes:
            return Plan((everything,), frozenset(), None)
        names = sorted({t.name.split("/")[1 if t.name.startswith("model/") else 2] for t in described})  # type: ignore[attr-defined]
        parts: list[list[int]] = [[] for _ in range(rounds)]
        for at, tensor in enumerate(described):
            name = tensor.name.split("/")[1 if tensor.name.startswith("model/") else 2]  # type: ignore[attr-defined]
            parts[names.index(name) % rounds].append(at)
        return Plan(tuple(tuple(part) for part in parts), frozenset(), None)

    Planner.plan = plan  # type: ignore[method-assign, assignment]


def child(path: str, steps: int, rounds: int) -> None:
    api.mover = lambda _parameters: LateMover()
    in_parts(rounds)
    program = Program()
    run = opened(Path(path), program, buffer_bytes_max=1_200_000)
    run.resume()
    assert run._recording is not None
    for at in range(1, steps + 200):
        program.step()
        run.commit()
        if at % 10 == 0:
            run.wait(timeout=60)  # a disk that falls behind gets whole states for half a minute
        if at < steps:
            continue
        run._recording.finish()
        run._link.settle()
        entry = run._link.ring.read(run._link.tally.newest)
        if entry.low < entry.step:  # else a slow disk has asked for a whole one just before
            break
    sys.stdout.write(f"{entry.low} {entry.step} {run.acknowledged('memory')} {digest(program)}")
    sys.stdout.flush()
    os.kill(os.getpid(), 9)


def digest(program: Program) -> str:
    return str(hash(tuple(program.bits())))


@pytest.mark.parametrize(("rounds", "steps"), [(2, 150), (4, 231)])
def test_a_state_in_parts_is_repaired_to_one_step(rounds: int, steps: int, tmp_path: Path) -> None:
    code = f"from tests.exact.test_spread import child; child({str(tmp_path / 'run')!r}, {steps}, {rounds})"
    environment = {**os.environ, "PYTHONHASHSEED": "0", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=120, cwd=ROOT)
    assert done.returncode == -9, done.stderr
    low, high, memory, _ = (int(word) for word in done.stdout.split())
    assert low == high - rounds + 1, "it really was in parts"
    assert memory >= steps
    steps = memory
    program = Program()
    with opened(tmp_path / "run", program) as run:
        assert run.resume() == steps
        assert run.ledger is not None
        assert all(item.origin.startswith(("memory", "record")) for item in run.ledger)
        resumed = program.bits()
    whole = Program()
    for _ in range(steps):
        whole.step()
    assert resumed == whole.bits()


def test_an_edit_gives_up_the_parts_taken_so_far(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api, "mover", lambda _parameters: LateMover())
    monkeypatch.setattr(Planner, "plan", Planner.plan)
    in_parts(3)
    program = Program()
    with opened(tmp_path / "run", program, buffer_bytes_max=1_200_000) as run:
        run.resume()
        for at in range(200):
            program.step()
            run.commit()
            if at % 7 == 6:
                with torch.no_grad():
                    program.model[0].weight.mul_(0.9)
        wanted = program.bits()
        program.step()
        run.commit()
        assert run.health.not_recorded == 0
        wanted = program.bits()
    again = Program()
    with opened(tmp_path / "run", again) as run:
        assert run.resume() == 201
        assert again.bits() == wanted


def test_a_base_of_which_a_part_is_packed_first_is_of_one_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Gradients go on while the packed part is still on its way."""
    packed = []

    def plan(_planner: Planner, described: list[object], _gradient_bytes: int, *, spread: bool) -> Plan:
        everything = tuple(range(len(described)))
        packed.append(not spread)
        return Plan((everything,), frozenset() if spread else frozenset(everything[::2]), None)

    monkeypatch.setattr(api, "mover", lambda _parameters: LateMover())
    monkeypatch.setattr(Planner, "plan", plan)
    program = Program()
    with opened(tmp_path / "run", program, base_log_bytes_max=20_000) as run:
        run.resume()
        for _ in range(60):
            program.step()
            run.commit()
            run.wait(timeout=20)
    assert sum(packed) > 5
    whole = Program()
    wanted = {0: whole.bits()}
    for step in range(1, 61):
        whole.step()
        wanted[step] = whole.bits()
    for step in (60, 41, 23, 7):  # each begins a branch
        again = Program()
        with opened(tmp_path / "run", again) as run:
            assert run.resume(step=step) == step
            assert again.bits() == wanted[step]
