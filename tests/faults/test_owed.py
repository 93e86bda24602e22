"""What the disk is owed when a run ends: a base of the newest step, and never of a program that has gone on since."""

import errno
import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import everstep
from everstep.errors import NotAcknowledged
from everstep.ring import ring as words
from tests.faults.conftest import Small
from tests.faults.disks import FailingDisk, StalledDisk
from tests.faults.test_keeper import keeper_pid

Around = Callable[[Callable[[Any], Any]], list[Any]]
GOES_ON: dict[str, Callable[["Counting"], object]] = {
    "stays": lambda _: None,
    "draws": lambda _: torch.rand(1),
    "steps": lambda program: program.step(),
    "counts": lambda program: program.counts(),
}


class Counting(Small):
    """With a buffer that a forward pass changes."""

    def __init__(self, device: str = "cpu") -> None:
        super().__init__()
        self.model.insert(1, nn.BatchNorm1d(8))
        self.model.to(device)
        self.device = device
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.01)

    def forward(self) -> torch.Tensor:
        return self.model(torch.randn(4, 8).to(self.device))  # type: ignore[no-any-return]

    def counts(self) -> None:
        """A forward pass that draws nothing: its buffers alone tell."""
        self.model(torch.ones(4, 8, device=self.device) * torch.arange(4, device=self.device)[:, None])

    def step(self) -> None:
        self.forward().square().sum().backward()
        self.optimizer.step()
        self.optimizer.zero_grad()

    def bits(self) -> list[bytes]:
        states = [value for held in self.optimizer.state.values() for value in held.values()]
        tensors = (*self.model.parameters(), *self.model.buffers(), *states, torch.get_rng_state())
        return [tensor.detach().cpu().numpy().tobytes() for tensor in tensors]


def behind(run: everstep.Run, path: Path, program: Small) -> Callable[[], None]:
    """One more step, which the keeper, held still, has not seen; then it wants a base. Call the result to let it go."""
    pid = keeper_pid(path)
    os.kill(pid, signal.SIGSTOP)
    program.step()
    run.commit()
    run._link.ring.say(words.W_WANTS_BASE, 1)
    return lambda: os.kill(pid, signal.SIGCONT)


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("how", GOES_ON)
def test_a_base_at_the_end_is_of_the_step_it_names(tmp_path: Path, how: str, device: str) -> None:
    program, path = Counting(device), tmp_path / "run"
    run = program.open(path)
    run.resume()
    for _ in range(3):
        program.step()
        run.commit()
    go = behind(run, path, program)
    then = program.bits()
    GOES_ON[how](program)
    waker = threading.Timer(0.3, go)
    waker.start()
    run.close()
    waker.join()
    again = Counting(device)
    with again.open(path) as run:
        assert run.resume() == 4
        assert again.bits() == then


@pytest.mark.parametrize("steps", [1, 2, 7])
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_a_state_that_is_waited_for_is_written(tmp_path: Path, steps: int, device: str) -> None:
    """Of states at every step the disk gets those it has time for, and this one."""
    program = Counting(device)
    with program.open(tmp_path / "run", settings=everstep.Settings(source="state")) as run:
        run.resume()
        for _ in range(steps):
            program.step()
            run.commit()
        assert run.wait(timeout=20) == steps
        then = program.bits()
        program.counts()  # the next step has begun
    again = Counting(device)
    with again.open(tmp_path / "run") as run:
        assert run.resume() == steps
        assert again.bits() == then


def test_a_keeper_that_was_held_up_steps_over_the_states_that_are_gone(tmp_path: Path) -> None:
    """Their memory holds newer ones by then. It used to wait for them to become whole, and for ever."""
    program, path = Counting(), tmp_path / "run"
    with program.open(path, settings=everstep.Settings(source="state")) as run:
        run.resume()
        for _ in range(8):  # by then all the memory is there
            program.step()
            run.commit()
        assert run.wait(timeout=20) == 8
        pid = keeper_pid(path)
        os.kill(pid, signal.SIGSTOP)
        try:
            for _ in range(12):
                program.step()
                run.commit()
        finally:
            os.kill(pid, signal.SIGCONT)
        assert run.wait(timeout=20) == 20
        assert run.health.not_recorded == 0


@pytest.mark.parametrize("source", ["gradient", "state"])
def test_a_keeper_that_hangs_costs_a_step_no_more_than_allowed(tmp_path: Path, source: str) -> None:
    """Also when the state outgrows its memory, and the keeper must be given more."""
    program, path = Counting(), tmp_path / "run"
    program.model.register_buffer("grows", torch.zeros(1))
    with program.open(path, settings=everstep.Settings(source=source, stall_ms_max=100)) as run:  # type: ignore[arg-type]
        run.resume()
        for _ in range(3):
            program.step()
            run.commit()
        assert run.wait(timeout=20) == 3
        pid = keeper_pid(path)
        os.kill(pid, signal.SIGSTOP)
        try:
            program.model.grows = torch.zeros(1 << 20)
            for _ in range(5):
                program.step()
                began = time.monotonic()
                run.commit()
                assert time.monotonic() - began < 2.0
        finally:
            os.kill(pid, signal.SIGCONT)
        for _ in range(3):
            program.step()
            run.commit()
        assert run.wait(timeout=20) == 11
        then = program.bits()
    again = Counting()
    again.model.register_buffer("grows", torch.ones(1 << 20))
    with again.open(path) as run:
        assert run.resume() == 11
        assert again.bits() == then


@pytest.mark.parametrize("parts", [False, True], ids=["whole", "in-parts"])
def test_what_a_full_disk_lacks_at_the_end_waits_in_memory(
    tmp_path: Path, around: Around, monkeypatch: pytest.MonkeyPatch, parts: bool
) -> None:
    """A keeper alone cannot write a state that lies in memory in parts; the trainer that takes it up can."""
    full = threading.Event()
    around(lambda disk: FailingDisk(disk, lambda at, _: errno.ENOSPC if full.is_set() and at == "write" else None))
    program, path = Counting(), tmp_path / "run"
    run = program.open(path)
    run.resume()
    for step in range(6):
        program.step()
        run.commit()
        if step == 2:
            run.wait(timeout=30)
            full.set()
    then = program.bits()
    monkeypatch.setattr("everstep.api.CLOSE_SECONDS", 0.5)
    with pytest.raises(NotAcknowledged, match="Step 6 stays in this host"):
        run.close()
    monkeypatch.undo()
    full.clear()
    if parts:
        monkeypatch.setattr("everstep.keeper.feed.Feed.catch_up", lambda _feed, _seconds: None)
    again = Counting()
    with again.open(path) as run:
        assert run.resume() == 6
        assert again.bits() == then
        assert run.acknowledged() < 6
    with Counting().open(path) as run:  # and this time the disk has it
        assert run.resume() == 6
        assert run.ledger is not None
        assert not any("memory" in item.origin for item in run.ledger)


def test_waiting_in_the_middle_of_a_step_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("everstep.recording.durable.MIDWAY_SECONDS", 0.2)
    program, path = Counting(), tmp_path / "run"
    with program.open(path) as run:
        run.resume()
        go = behind(run, path, program)
        torch.rand(1)
        with pytest.raises(NotAcknowledged, match="call wait\\(\\) right after commit"):
            run.wait()
        go()
        program.step()
        run.commit()
        assert run.wait(timeout=30) == 2


@pytest.mark.parametrize("source", ["gradient", "state"])
@pytest.mark.parametrize("ends", [everstep.Run.wait, everstep.Run.close], ids=["wait", "close"])
def test_the_last_steps_are_not_missing_for_a_buffer_that_was_full(
    ends: Callable[[everstep.Run], object], source: str, tmp_path: Path, around: Around
) -> None:
    """What was not recorded while the disk stood still is there as a base of the newest step, once it goes again."""
    go = threading.Event()
    go.set()
    around(lambda disk: StalledDisk(disk, go))
    program = Small(width=64)
    settings = everstep.Settings(buffer_bytes_max=450_000, stall_ms_max=10, source=source)  # type: ignore[arg-type]
    run = program.open(tmp_path / "run", settings=settings)
    run.resume()
    program.step()
    run.commit()
    run.wait(timeout=30)
    go.clear()
    while run.health.not_recorded < 3:
        program.step()
        newest = run.commit()
    with pytest.raises(NotAcknowledged):
        run.wait(timeout=0.1)
    threading.Timer(0.2, go.set).start()
    ends(run)
    run.close()
    again = Small(seed=3, width=64)
    with again.open(tmp_path / "run", settings=settings) as run:
        assert run.resume() == newest
        assert again.bits() == program.bits()
        again.step()
        assert run.commit() == newest + 1
        assert run.wait(timeout=30) == newest + 1
