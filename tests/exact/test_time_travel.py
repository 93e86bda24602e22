"""The log holds every step, so every step can be restored, and an older one begins a new branch."""

from pathlib import Path
from typing import Any

import pytest
import torch

import everstep
from everstep.errors import CannotReplay, StepNotHeld
from tests.exact.program import STEPS, Program, build, fingerprint


def opened(path: Path, program: Program, **settings: Any) -> everstep.Run:
    return everstep.open(
        path,
        model=program.model,
        optimizer=program.optimizers["main"],
        state=program.state,
        settings=everstep.Settings(**settings),
    )


def history(
    path: Path, optimizer: str, steps: int = STEPS, **settings: Any
) -> dict[int, tuple[dict[str, bytes], dict[str, torch.Tensor]]]:
    """Train and remember the state after every step."""
    program, found = build(optimizer, "scheduler"), {}
    with opened(path, program, **settings) as run:
        for at in range(run.resume(), steps):
            program.step(at)
            copy = {name: p.detach().clone() for name, p in program.model.named_parameters()}
            found[run.commit()] = (fingerprint(program), copy)
            run.wait(timeout=30)
    return found


@pytest.mark.parametrize("optimizer", ["adamw fused", "adamw single", "sgd momentum", "adagrad"])
def test_restore_gives_every_step_without_a_model(optimizer: str, tmp_path: Path) -> None:
    expected = history(tmp_path / "run", optimizer, base_log_bytes_max=20_000)
    for step, (_, parameters) in expected.items():
        restored = everstep.restore(tmp_path / "run", step)
        assert restored.step == step
        for name, parameter in parameters.items():
            assert torch.equal(restored.tensors[f"model/{name}"], parameter)
    assert "state/scheduler" in restored.context
    assert restored.context["optimizers"]["main"][0]["params"] == [
        "first.weight",
        "second.weight",
        "head.weight",
        "head.bias",
    ]


@pytest.mark.parametrize("step", [1, 6, STEPS])
def test_resuming_at_an_older_step_goes_on_as_then(step: int, tmp_path: Path) -> None:
    expected = history(tmp_path / "run", "adamw single")
    program = build("adamw single", "scheduler")
    with opened(tmp_path / "run", program) as run:
        assert run.resume(step) == step
        assert fingerprint(program) == expected[step][0]
        for at in range(step, STEPS):
            program.step(at)
            run.commit()
    assert fingerprint(program) == expected[STEPS][0]


def test_the_old_branch_stays_until_it_is_pruned(tmp_path: Path) -> None:
    expected = history(tmp_path / "run", "adamw fused")
    program = build("adamw fused", "scheduler")
    with opened(tmp_path / "run", program) as run:
        run.resume(5)
        torch.manual_seed(99)  # another future
        for at in range(5, 9):
            program.step(at)
            run.commit()
    newest = everstep.restore(tmp_path / "run")
    assert newest.step == 9
    assert not torch.equal(newest.tensors["model/head.weight"], expected[9][1]["head.weight"])
    old = everstep.restore(f"{tmp_path}/run#1", 9)
    assert torch.equal(old.tensors["model/head.weight"], expected[9][1]["head.weight"])
    assert torch.equal(
        everstep.restore(tmp_path / "run", 4).tensors["model/head.weight"], expected[4][1]["head.weight"]
    )


def test_a_step_the_run_does_not_hold_is_named_with_those_it_does(tmp_path: Path) -> None:
    history(tmp_path / "run", "sgd", steps=4)
    with pytest.raises(StepNotHeld, match=r"step 9 cannot be restored\. Steps that can: 0 to 4"):
        everstep.restore(tmp_path / "run", 9)
    with opened(tmp_path / "run", build("sgd", "scheduler")) as run, pytest.raises(StepNotHeld, match="0 to 4"):
        run.resume(5)


def test_an_optimizer_of_the_users_own_is_not_replayed_without_its_program(tmp_path: Path) -> None:
    history(tmp_path / "run", "our own", steps=4)
    with pytest.raises(CannotReplay, match=r"'main' is a tests\.exact\.program\.Langevin"):
        everstep.restore(tmp_path / "run", 3)
    assert everstep.restore(tmp_path / "run", 0).step == 0


def test_old_bases_go_when_the_run_outgrows_its_share(tmp_path: Path) -> None:
    history(tmp_path / "run", "adamw single", base_log_bytes_max=12_000, segment_bytes=6_000, retain_bytes_max=40_000)
    held = sorted(path.name for path in (tmp_path / "run" / "w00000").glob("b*.json"))
    assert 2 <= len(held) <= 3
    with pytest.raises(StepNotHeld):
        everstep.restore(tmp_path / "run", 1)
    assert everstep.restore(tmp_path / "run").step == STEPS
