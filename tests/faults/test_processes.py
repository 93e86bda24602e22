"""Signals, kills, forks: whatever ends the process, the next one goes on from the last acknowledged step."""

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

ENDLESS = 1 << 20
"""Steps of a child that is struck before it gets there, however late."""


@contextmanager
def child(run: Path, steps: int, how: str = "") -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "tests.faults.child", str(run), str(steps), how]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2]
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        for stream in (process.stdout, process.stderr):
            assert stream is not None
            stream.close()


def words(process: subprocess.Popen[str]) -> Iterator[list[str]]:
    assert process.stdout is not None
    for line in process.stdout:
        yield line.split()


def until(process: subprocess.Popen[str], *wanted: str) -> list[str]:
    for said in words(process):
        if said[: len(wanted)] == list(wanted):
            return said
    raise AssertionError(f"the child never said {wanted}: {process.stderr.read() if process.stderr else ''}")


def finished(run: Path, steps: int, how: str = "") -> tuple[int, str]:
    """Train to the end; the step it resumed at and what it ended with."""
    with child(run, steps, how) as process:
        resumed = int(until(process, "resumed")[1])
        told = until(process, "done", str(steps))[2]
        if how != "stay":
            process.wait(timeout=60)
        return resumed, told


def uninterrupted(steps: int, how: str) -> str:
    with tempfile.TemporaryDirectory() as home:
        return finished(Path(home) / "whole", steps, how)[1]


@pytest.mark.parametrize(
    ("blow", "how"), [(signal.SIGKILL, ""), (signal.SIGKILL, "workers"), (signal.SIGTERM, ""), (signal.SIGINT, "")]
)
def test_a_signal_at_any_moment_loses_nothing_acknowledged(blow: signal.Signals, how: str, tmp_path: Path) -> None:
    last = 0
    for at in (3, 20):
        with child(tmp_path / "run", ENDLESS, how) as process:
            resumed = int(until(process, "resumed")[1])
            assert resumed <= last + (last > 0), "at most one was committed and not yet said"
            assert blow != signal.SIGINT or resumed >= last, "SIGINT unwinds: what was committed is flushed"
            until(process, "step", str(resumed + at))
            process.send_signal(blow)
            last = max((int(said[1]) for said in words(process) if said[0] == "step"), default=resumed + at)
            process.wait(timeout=60)
    steps = last + 10
    resumed, killed = finished(tmp_path / "run", steps, how)
    assert resumed <= last + 1
    assert killed == uninterrupted(steps, how)


def test_a_forked_child_neither_writes_nor_holds_the_lease(tmp_path: Path) -> None:
    with child(tmp_path / "run", 5, "fork") as process:
        pid = int(until(process, "child")[1])
        try:
            until(process, "refused")
            process.kill()
            process.wait()
            os.kill(pid, 0)  # the forked child is still there
            assert finished(tmp_path / "run", 8)[0] >= 0
        finally:
            os.kill(pid, signal.SIGKILL)


def test_a_run_in_use_is_refused_from_another_process(tmp_path: Path) -> None:
    with child(tmp_path / "run", 3, "stay") as first:
        until(first, "done", "3")
        with child(tmp_path / "run", 9) as second:
            assert second.wait(timeout=60) == 1
            assert second.stderr is not None
            assert f"process {first.pid} on" in second.stderr.read()
    assert finished(tmp_path / "run", 9)[0] == 3
