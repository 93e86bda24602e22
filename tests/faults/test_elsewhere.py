"""Trainers that are restarted on other hosts: a keeper may still have the lease for what their old ones left, and once
the run has gone on without it, what it holds in memory is past."""

import itertools
import logging
import os
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import everstep
from everstep.errors import RunInUse
from everstep.keeper import caller, desk
from everstep.log import lease
from everstep.store import rendezvous
from everstep.store.disk import LocalDisk
from tests.faults.conftest import Small
from tests.faults.disks import StalledDisk
from tests.faults.test_anew import died, left
from tests.faults.test_keeper import until

Around = Callable[[Callable[[LocalDisk], Any]], list[Any]]


@pytest.fixture
def moves(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], None]]:
    """From then on processes are on the other of two hosts: they find no keeper of the one before."""
    here, there = rendezvous.directory, tempfile.TemporaryDirectory()  # a socket's path must be short
    with there as place:
        ways = itertools.cycle((lambda: place, here))
        yield lambda: monkeypatch.setattr(rendezvous, "directory", next(ways))


def test_a_keeper_that_writes_for_a_dead_trainer_is_waited_for(
    tmp_path: Path, around: Around, moves: Callable[[], None], monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    go = threading.Event()
    go.set()
    around(lambda disk: StalledDisk(disk, go))
    monkeypatch.setattr(desk, "alive", lambda _pid: False)
    run, bits = left(tmp_path / "run", lambda step: step == 4 and go.clear())
    moves()
    program = Small(seed=3)
    with pytest.raises(RunInUse, match="is writing this run"):
        program.open(tmp_path / "run")
    died(run)
    with ThreadPoolExecutor(1) as beside, caplog.at_level(logging.WARNING):
        opened = beside.submit(program.open, tmp_path / "run")
        deadline = time.monotonic() + 30
        while "its keeper still writes what it left" not in caplog.text and time.monotonic() < deadline:
            time.sleep(0.01)
        assert not opened.done()
        go.set()
        again = opened.result(timeout=60)
    with again:
        assert again.resume() == len(bits)
        assert program.bits() == bits[-1]


def test_a_keeper_that_has_not_seen_yet_that_its_trainer_is_dead_is_given_a_moment(
    tmp_path: Path, around: Around, moves: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    around(lambda disk: disk)
    monkeypatch.setattr(desk, "alive", lambda _pid: False)
    run, bits = left(tmp_path / "run", lambda _step: None)
    moves()
    program, refused = Small(seed=3), threading.Event()
    real = lease.take

    def take(*given: Any, **named: Any) -> lease.Lease:
        try:
            return real(*given, **named)
        except RunInUse:
            refused.set()
            raise

    monkeypatch.setattr(lease, "take", take)
    with ThreadPoolExecutor(1) as beside:
        opened = beside.submit(program.open, tmp_path / "run")
        assert refused.wait(30)
        died(run)
        again = opened.result(timeout=60)
    with again:
        assert again.resume() == len(bits)


def test_it_is_not_waited_for_without_end(
    tmp_path: Path, around: Around, moves: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    go = threading.Event()
    go.set()
    around(lambda disk: StalledDisk(disk, go))
    monkeypatch.setattr(desk, "alive", lambda _pid: False)
    monkeypatch.setattr(caller, "WAIT_SECONDS_MAX", 0.5)
    run, _ = left(tmp_path / "run", lambda step: step == 4 and go.clear())
    moves()
    died(run)
    with pytest.raises(RunInUse, match=r"process \d+ on .* has ended, and its keeper still writes"):
        Small(seed=3).open(tmp_path / "run")
    go.set()


def gone_on(path: Path, program: Small, steps: int, **settings: Any) -> int:
    """Where a trainer resumed that trained so many steps, and closed; its keeper has ended."""
    with program.open(path, settings=everstep.Settings(**settings)) as run:
        first = run.resume()
        for _ in range(steps):
            program.step()
            run.commit()
        run.wait(timeout=60)
    assert until(lambda: not os.listdir(rendezvous.directory()))
    return first


@pytest.mark.parametrize("steps", [0, 4])
def test_a_host_that_the_run_comes_back_to_holds_the_past(
    steps: int, tmp_path: Path, around: Around, moves: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    around(lambda disk: disk)
    monkeypatch.setattr(desk, "alive", lambda _pid: False)
    run, bits = left(tmp_path / "run", lambda _step: None)
    died(run)
    moves()
    elsewhere = Small(seed=3)
    assert gone_on(tmp_path / "run", elsewhere, steps) == len(bits)
    moves()
    back = Small(seed=4)
    with back.open(tmp_path / "run") as again:
        assert again.resume() == len(bits) + steps
        assert back.bits() == elsewhere.bits()


def test_a_host_whose_disk_stood_still_meanwhile_holds_it_as_well(
    tmp_path: Path, around: Around, moves: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    go = threading.Event()
    go.set()
    monkeypatch.setattr(desk, "alive", lambda _pid: False)
    made = around(lambda disk: StalledDisk(disk, go) if not made else disk)
    run, bits = left(tmp_path / "run", lambda step: step == 4 and go.clear())
    died(run)
    moves()
    elsewhere = Small(seed=3)
    first = gone_on(tmp_path / "run", elsewhere, 20, take_over=True)
    assert first <= len(bits)
    moves()
    threading.Timer(0.3, go.set).start()
    back = Small(seed=4)
    with back.open(tmp_path / "run") as again:
        assert again.resume() == first + 20
        assert back.bits() == elsewhere.bits()
