"""A keeper that takes a dead one's place goes on from where that one had come to, whatever the run had begun with."""

import os
import signal
from collections.abc import Callable
from pathlib import Path

import everstep
from everstep.log.inventory import survey
from everstep.store.disk import existing
from tests.faults.conftest import Small
from tests.faults.test_keeper import gone, keeper_pid, until


def train(program: Small, run: everstep.Run, steps: int) -> None:
    for _ in range(steps):
        program.step()
        run.commit()


def test_what_a_dead_keeper_had_written_is_found_at_once(tmp_path: Path, small: Callable[..., Small]) -> None:
    """Also in a run that was resumed from files, and after several deaths."""
    path, program = tmp_path / "run", small()
    with program.open(path) as run:
        run.resume()
        train(program, run, 5)
    program = small(seed=3)
    with program.open(path) as run:
        assert run.resume() == 5
        for last in (15, 21, 27):
            train(program, run, last - run.acknowledged("memory"))
            assert run.wait(timeout=60) == last
            os.kill(keeper_pid(path), signal.SIGKILL)
            assert until(lambda: gone(path))
            run._link.poke()
            assert until(lambda: not gone(path))
            assert until(lambda: survey(existing(str(path)), "run").epoch == run._link.epoch)
            assert run.acknowledged() == last
            assert everstep.restore(path).step == last
        assert survey(existing(str(path)), "run").spans() == [(0, 27)], "one unbroken line"
