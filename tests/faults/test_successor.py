"""A keeper that takes a dead one's place goes on from where that one had come to, whatever the run had begun with."""

import os
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Event

import pytest
import torch

import everstep
from everstep.errors import NotAcknowledged, StoreFailed
from everstep.keeper import launch
from everstep.keeper.caller import Caller
from everstep.log.inventory import survey
from everstep.store.disk import existing
from tests.beside import keep_here
from tests.faults.conftest import Small
from tests.faults.disks import SlowToWrite
from tests.faults.test_keeper import gone, keeper_pid, until
from tests.unit.cli.runs import proved


def train(program: Small, run: everstep.Run, steps: int) -> None:
    for _ in range(steps):
        program.step()
        run.commit()


def after(seen: Callable[[], bool]) -> Callable[[Caller], int]:
    """Another keeper is there only once this was seen."""
    call_again = Caller.call_again

    def late(caller: Caller) -> int:
        assert until(seen)
        return call_again(caller)

    return late


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


@pytest.mark.parametrize("source", ["gradient", "state"])
def test_a_run_that_ends_while_its_keeper_is_replaced_is_whole_on_disk(
    source: str, tmp_path: Path, small: Callable[..., Small], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wherever the dead one had come to: with a record or two, or a base, on its way."""
    for steps in (1, 2, 3, 5, 8):
        path, program = tmp_path / f"{steps}", small()
        run = program.open(path, settings=everstep.Settings(source=source, linger_seconds=0.0))  # type: ignore[arg-type]
        with monkeypatch.context() as patched:
            patched.setattr(Caller, "call_again", after(lambda run=run: run._closed))
            run.resume()
            train(program, run, steps)
            os.kill(keeper_pid(path), signal.SIGKILL)
            train(program, run, 2)
            run.close()
        assert until(lambda path=path: gone(path))
        again = small(seed=3)
        with again.open(path) as run:
            assert run.resume() == steps + 2
        assert again.bits() == program.bits()


@contextmanager
def stopped(path: Path) -> Iterator[Callable[[], None]]:
    """The keeper does nothing any more, until it is killed."""
    keeper = keeper_pid(path)
    os.kill(keeper, signal.SIGSTOP)
    try:
        yield lambda: os.kill(keeper, signal.SIGKILL)
    finally:
        with suppress(ProcessLookupError):
            os.kill(keeper, signal.SIGCONT)


@pytest.mark.parametrize("source", ["gradient", "state"])
@pytest.mark.parametrize("ends", [everstep.Run.wait, everstep.Run.close], ids=["wait", "close"])
def test_a_keeper_that_dies_while_it_is_waited_for_is_replaced(
    ends: Callable[[everstep.Run], object], source: str, tmp_path: Path, small: Callable[..., Small]
) -> None:
    path, program = tmp_path / "run", small()
    run = program.open(path, settings=everstep.Settings(source=source, linger_seconds=0.0))  # type: ignore[arg-type]
    run.resume()
    train(program, run, 3)
    assert run.wait(timeout=60) == 3
    with stopped(path) as kill, ThreadPoolExecutor(1) as beside:
        train(program, run, 2)
        ended = beside.submit(ends, run)
        with pytest.raises(TimeoutError):
            ended.result(timeout=0.5)
        kill()
        ended.result(timeout=60)
    assert everstep.restore(path).step == 5
    run.close()


def test_a_state_that_the_next_keeper_is_to_write_keeps_its_place(
    tmp_path: Path, small: Callable[..., Small], monkeypatch: pytest.MonkeyPatch
) -> None:
    """However long its disk takes: the trainer must not put a later state there meanwhile."""
    path, program, go = tmp_path / "run", small(), Event()
    with program.open(path) as run:
        run.resume()
        train(program, run, 3)
        assert run.wait(timeout=60) == 3
        with stopped(path) as kill:
            train(program, run, 2)
            edited(program, run)
            assert run._link.base_in_hand
            kill()
            monkeypatch.setattr(launch, "start", keep_here(lambda at: SlowToWrite(existing(at), go)))
            assert run._link.attended(60)
        for _ in range(6):
            edited(program, run)
        assert run._link.base_in_hand
        go.set()
        assert run.wait(timeout=60) == 12
        assert proved(path).damages == []
        assert everstep.restore(path, step=6).step == 6
    again = small(seed=3)
    with again.open(path) as run:
        assert run.resume() == 12
        assert again.bits() == program.bits()


def edited(program: Small, run: everstep.Run) -> None:
    """A step that only a state can hold."""
    with torch.no_grad():
        program.model[0].weight.mul_(0.9)
    train(program, run, 1)


def test_a_wait_that_is_limited_ends_in_time_though_no_keeper_comes(
    tmp_path: Path, small: Callable[..., Small], monkeypatch: pytest.MonkeyPatch
) -> None:
    path, program, come = tmp_path / "run", small(), Event()
    with program.open(path) as run:
        run.resume()
        monkeypatch.setattr(Caller, "call_again", after(come.is_set))
        with stopped(path) as kill:
            train(program, run, 2)
            kill()
            began = time.monotonic()
            with pytest.raises(NotAcknowledged, match="step 2 is not acknowledged"):
                run.wait(timeout=1)
        assert time.monotonic() - began < 10
        come.set()
        assert run.wait(timeout=60) == 2


def test_a_run_ends_in_time_though_no_keeper_comes(
    tmp_path: Path, small: Callable[..., Small], monkeypatch: pytest.MonkeyPatch
) -> None:
    path, program, come = tmp_path / "run", small(), Event()
    run = program.open(path)
    run.resume()
    monkeypatch.setattr(Caller, "call_again", after(come.is_set))
    monkeypatch.setattr("everstep.api.CLOSE_SECONDS", 1.0)
    os.kill(keeper_pid(path), signal.SIGKILL)
    train(program, run, 2)
    began = time.monotonic()
    with pytest.raises(NotAcknowledged, match=r"closed with no step on disk, but 2 committed \(its keeper died\)"):
        run.close()
    assert time.monotonic() - began < 10
    come.set()
    starting = run._link._successor
    assert starting is not None
    assert until(lambda: not starting.starting)
    assert until(lambda: gone(path)), "and one that comes too late goes again"


def test_a_keeper_that_dies_before_the_run_resumes_is_told_of(tmp_path: Path, small: Callable[..., Small]) -> None:
    path, program = tmp_path / "run", small()
    run = program.open(path)
    os.kill(keeper_pid(path), signal.SIGKILL)
    assert until(lambda: gone(path))
    with pytest.raises(StoreFailed, match=r"its keeper died .* open it again"):
        run.resume()
    run.close()
    with program.open(path) as run:
        assert run.resume() == 0
        train(program, run, 1)
        assert run.wait(timeout=60) == 1
