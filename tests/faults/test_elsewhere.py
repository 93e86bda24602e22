"""Ranks that are restarted on other hosts find the lease with a keeper that still writes what their old ones left."""

import logging
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from everstep.errors import RunInUse
from everstep.keeper import caller, desk
from everstep.store import rendezvous
from everstep.store.disk import LocalDisk
from tests.faults.conftest import Small
from tests.faults.disks import StalledDisk
from tests.faults.test_anew import died, left

Around = Callable[[Callable[[LocalDisk], Any]], list[Any]]


@pytest.fixture
def moves(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], None]]:
    """From then on processes are on another host: they find no keeper of this one."""
    with tempfile.TemporaryDirectory() as place:  # a socket's path must be short
        yield lambda: monkeypatch.setattr(rendezvous, "directory", lambda: place)


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


def test_it_is_not_waited_for_without_end(
    tmp_path: Path, around: Around, moves: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    go = threading.Event()
    go.set()
    around(lambda disk: StalledDisk(disk, go))
    monkeypatch.setattr(desk, "alive", lambda _pid: False)
    monkeypatch.setattr(caller, "SOON_SECONDS", 0.5)
    run, _ = left(tmp_path / "run", lambda step: step == 4 and go.clear())
    moves()
    died(run)
    with pytest.raises(RunInUse, match=r"process \d+ on .* has ended, and its keeper still writes"):
        Small(seed=3).open(tmp_path / "run")
    go.set()
