"""Whoever does not go on with what a dead trainer left in memory begins an epoch of its own, and the dead one's steps
come to the disk all the same."""

import errno
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch

import everstep
from everstep.keeper import desk
from everstep.keeper.channel import Gone
from everstep.keeper.messages import Close
from everstep.log.inventory import survey
from everstep.ring import held as memory_tier
from everstep.ring.held import Left
from everstep.ring.ring import Ring
from everstep.store.disk import LocalDisk, existing
from everstep.store.memory import Block
from tests.faults.conftest import Small
from tests.faults.disks import FailingDisk, StalledDisk
from tests.faults.test_keeper import until

Around = Callable[[Callable[[LocalDisk], Any]], list[Any]]
STEPS = 6


@pytest.fixture(autouse=True)
def nobody_lives(monkeypatch: pytest.MonkeyPatch) -> None:
    """Trainers of this test are dead for the keeper once they have hung up."""
    monkeypatch.setattr(desk, "alive", lambda _pid: False)


def left(path: Path, then: Callable[[int], object], **settings: Any) -> tuple[everstep.Run, list[list[bytes]]]:
    """A trainer, and how it was after each step. The first two are on disk, `then` is called after each."""
    program, bits = Small(), []
    run = program.open(path, settings=everstep.Settings(segment_bytes=2000, **settings))
    run.resume()
    for step in range(1, STEPS + 1):
        program.step()
        run.commit()
        bits.append(program.bits())
        if step <= 2:
            run.wait(timeout=60)
        then(step)
    assert until(lambda: run.acknowledged("memory") == STEPS)
    return run, bits


def died(run: everstep.Run) -> None:
    run._closed = True
    run._link.drop()
    assert run._recording is not None
    run._recording._hooks.remove()


def whole(path: Path) -> list[tuple[int, int]]:
    """The steps of the first epoch."""
    disk = existing(str(path))
    found = survey(disk, str(path), epoch=1)
    disk.release()
    assert found.damages == []
    return found.spans()


def test_an_older_step_is_resumed_while_the_keeper_still_writes_newer_ones(tmp_path: Path, around: Around) -> None:
    go = threading.Event()
    go.set()
    around(lambda disk: StalledDisk(disk, go))
    run, bits = left(tmp_path / "run", lambda step: step == 2 and go.clear())
    died(run)
    program = Small(seed=3)
    with program.open(tmp_path / "run") as again, ThreadPoolExecutor(1) as beside:
        resumed = beside.submit(again.resume, 2)
        threading.Timer(0.3, go.set).start()
        assert resumed.result(timeout=60) == 2
        assert program.bits() == bits[1]
        assert whole(tmp_path / "run") == [(0, STEPS)]
        program.step()
        again.commit()
        assert again.wait(timeout=60) == 3
    last = Small(seed=4)
    with last.open(tmp_path / "run") as again:
        assert again.resume() == 3
    assert last.bits() == program.bits()


def test_a_disk_that_refuses_is_not_waited_for(tmp_path: Path, around: Around) -> None:
    full = threading.Event()
    refuses = lambda call, path: errno.ENOSPC if full.is_set() and call == "write" and path.endswith(".seg") else None  # noqa: E731
    around(lambda disk: FailingDisk(disk, refuses))
    run, bits = left(tmp_path / "run", lambda step: step == 4 and full.set())
    assert until(lambda: run.health.state == "degraded")
    died(run)
    again = Small(seed=3).open(tmp_path / "run")
    with ThreadPoolExecutor(1) as beside, pytest.raises(everstep.errors.StoreFailed, match="ENOSPC"):
        beside.submit(again.resume, 2).result(timeout=60)  # nothing can be recorded
    again.close()
    full.clear()
    program = Small(seed=4)
    with program.open(tmp_path / "run") as again:
        assert again.resume(2) == 2
    assert program.bits() == bits[1]


def test_steps_that_are_given_up_in_memory_are_not_in_the_log(
    tmp_path: Path, around: Around, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when another rank does not have them: what is trained instead is another step of the same number."""
    go = threading.Event()
    go.set()
    around(lambda disk: StalledDisk(disk, go))
    run, bits = left(tmp_path / "run", lambda step: step == 3 and go.clear())
    died(run)

    def of_four(blocks: Mapping[int, Block]) -> Left:
        ring = Ring(blocks[-1])
        found = memory_tier.held(ring, 4)
        assert found is not None
        return ring, blocks, found

    still = memory_tier.left
    monkeypatch.setattr(memory_tier, "left", of_four)
    program = Small(seed=3)
    with program.open(tmp_path / "run") as again:
        threading.Timer(0.3, go.set).start()
        assert again.resume() == 4
        assert program.bits() == bits[3]
        torch.manual_seed(99)
        for _ in range(3):
            program.step()
            again.commit()
        assert again.wait(timeout=60) == 7
    assert program.bits()[0] != bits[-1][0]
    monkeypatch.setattr(memory_tier, "left", still)
    disk = existing(str(tmp_path / "run"))
    found = survey(disk, "run")
    disk.release()
    assert (found.damages, found.newest) == ([], 7)
    last = Small(seed=4)
    with last.open(tmp_path / "run") as again:
        assert again.resume() == 7
    assert last.bits() == program.bits()


def test_a_log_that_has_not_come_as_far_as_memory_goes_on_with_a_base(tmp_path: Path, around: Around) -> None:
    """As when the trainer before took states alone, and the disk had no time for the newest."""
    go = threading.Event()
    go.set()
    around(lambda disk: StalledDisk(disk, go))
    run, bits = left(tmp_path / "run", lambda step: step == 2 and go.clear(), source="state")
    died(run)
    program = Small(seed=3)
    with program.open(tmp_path / "run") as again:
        assert again.resume() == STEPS
        assert program.bits() == bits[-1]
        go.set()
        for _ in range(2):
            program.step()
            again.commit()
        assert again.wait(timeout=60) == STEPS + 2
    last = Small(seed=4)
    with last.open(tmp_path / "run") as again:
        assert again.resume() == STEPS + 2
    assert last.bits() == program.bits()


def test_who_comes_while_the_one_before_is_still_closing_gets_the_place(tmp_path: Path, around: Around) -> None:
    """Killed while it closed, on a disk that takes nothing at the moment."""
    go = threading.Event()
    go.set()
    around(lambda disk: StalledDisk(disk, go))
    run, bits = left(tmp_path / "run", lambda step: step == 2 and go.clear())
    with pytest.raises(Gone):  # it is told to close, and killed while it waits for that
        run._link._caller.ask(Close(5.0), 0.5)
    died(run)
    program = Small(seed=3)
    with program.open(tmp_path / "run") as again:
        threading.Timer(0.5, go.set).start()
        assert again.resume() == STEPS
        assert program.bits() == bits[-1]
        for _ in range(3):
            program.step()
            again.commit()
            time.sleep(2.0)  # the one before has closed by now
        assert again.wait(timeout=60) == STEPS + 3
    assert everstep.restore(tmp_path / "run").step == STEPS + 3


def test_memory_is_not_forgotten_under_who_has_just_come_for_it(
    tmp_path: Path, around: Around, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The time to wait for a trainer may be up while one is being let in."""
    around(lambda disk: disk)
    run, bits = left(tmp_path / "run", lambda _step: None, linger_seconds=0.5)
    forgets, begins, forgot = threading.Event(), threading.Event(), threading.Event()
    begin, forget = desk.Desk.begin, desk.Desk.forget

    def late(self: desk.Desk, *given: Any) -> bool:
        forgets.set()
        assert begins.wait(30)
        done = forget(self, *given)
        forgot.set()
        return done

    def begun(self: desk.Desk, *given: Any) -> bool:
        begins.set()
        assert forgot.wait(30)
        return begin(self, *given)

    monkeypatch.setattr(desk.Desk, "forget", late)
    monkeypatch.setattr(desk.Desk, "begin", begun)
    died(run)
    assert forgets.wait(30)
    program = Small(seed=3)
    with program.open(tmp_path / "run") as again:
        assert again.resume() == STEPS
    assert program.bits() == bits[-1]
