"""`everstep top` and `forget` see every keeper of this user, and change nothing but what they are told to."""

import json
import subprocess
import sys
from pathlib import Path

import torch

import everstep
from tests.faults.test_keeper import until

ROOT = Path(__file__).parents[3]
CHILD = (
    "import os, sys; sys.path.insert(0, {root!r}); from tests.faults.conftest import Small; p = Small()\n"
    "run = p.open({run!r}); run.resume()\n"
    "for _ in range(4): p.step(); run.commit()\n"
    "run.wait(timeout=30); os.kill(os.getpid(), 9)"
)


def killed(path: Path) -> None:
    subprocess.run([sys.executable, "-c", CHILD.format(root=str(ROOT), run=str(path))], check=False, timeout=60)


def test_a_training_run_is_listed_with_both_tiers(tmp_path: Path, cli) -> None:
    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with everstep.open(tmp_path / "run", model=model, optimizer=optimizer) as run:
        run.resume()
        model(torch.randn(4, 3)).sum().backward()
        optimizer.step()
        run.commit()
        run.wait(timeout=30)
        said = json.loads(cli("top", tmp_path / "run", "--json").out)
        assert [(one["committed"], one["memory"], one["acknowledged"], one["state"]) for one in said] == [
            (1, 1, 1, "ok")
        ]
        assert str(tmp_path / "run") in cli("top", "--once").out
    assert until(lambda: cli("top", tmp_path / "run", "--once").out.strip() == "no run has a keeper on this host.")


def test_a_dead_trainers_memory_is_shown_and_can_be_forgotten(tmp_path: Path, cli) -> None:
    killed(tmp_path / "run")
    assert until(lambda: json.loads(cli("top", tmp_path / "run", "--json").out)[0]["trainer"] is None)
    said = json.loads(cli("top", tmp_path / "run", "--json").out)
    assert (said[0]["memory"], said[0]["acknowledged"]) == (4, 4)
    assert "gone" in cli("top", tmp_path / "run", "--once").out
    assert "forgotten" in cli("forget", tmp_path / "run").out
    assert until(lambda: "nothing to forget" in cli("forget", tmp_path / "run").out)
    assert everstep.restore(tmp_path / "run").step == 4
