"""The keeper outlives the trainer, and training outlives the keeper."""

import multiprocessing.connection
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import everstep
from everstep.keeper import channel
from everstep.keeper.caller import Caller
from everstep.keeper.messages import Hello, Look, Report
from everstep.store import names, rendezvous
from everstep.store.disk import existing
from everstep.store.manifest import load_identity
from tests.faults.conftest import Small

Make = Callable[..., Small]
ROOT = Path(__file__).parents[2]


def until(done: Callable[[], bool], seconds: float = 30.0) -> bool:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if done():
            return True
        time.sleep(0.01)
    return done()


def line_to(path: Path) -> channel.Line | None:
    disk = existing(str(path))
    run = load_identity(disk, str(path)).run
    disk.release()
    return channel.call(rendezvous.address(rendezvous.name_of(run, str(path))))


def gone(path: Path) -> bool:
    line = line_to(path)
    if line is not None:
        line.close()
    return line is None


def looked(path: Path) -> Report | None:
    line = line_to(path)
    if line is None:
        return None
    line.send(Look())
    got = line.receive(10)
    line.close()
    return got[0] if got is not None and isinstance(got[0], Report) else None


def keeper_pid(path: Path) -> int:
    line = line_to(path)
    assert line is not None
    pid = line.peer()[0]
    line.close()
    return pid


@contextmanager
def trainer(run: Path, steps: int, how: str = "") -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "tests.faults.child", str(run), str(steps), how]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT)
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def said(process: subprocess.Popen[str], word: str) -> list[str]:
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith(word + " "):
            return line.split()
    raise AssertionError(f"the trainer never said {word}")


def test_a_killed_trainers_newest_step_is_resumed_from_memory(tmp_path: Path) -> None:
    with trainer(tmp_path / "run", 40, "stay") as process:
        ended = said(process, "done")[2]
    with trainer(tmp_path / "run", 40) as process:
        assert int(said(process, "resumed")[1]) == 40
        assert said(process, "done")[2] == ended


KILLED = """
import os, sys
sys.path.insert(0, {root!r})
from everstep.recording import room
from everstep.store.spare import Spare
from tests.faults.conftest import Small
room.spare = lambda: Spare({free}, "here")
program = Small()
run = program.open({run!r})
run.resume()
print(any(item.origin.startswith("memory of") for item in run.ledger or ()), *run.health.warnings, flush=True)
for _ in range(4):
    program.step()
    run.commit()
os.kill(os.getpid(), 9)
"""


def life(run: Path, free: int) -> str:
    code = KILLED.format(root=str(ROOT), run=str(run), free=free)
    command = [sys.executable, "-c", code]
    return subprocess.run(command, check=False, timeout=60, capture_output=True, text=True).stdout.strip()


def test_every_trainer_after_the_first_resumes_from_memory_though_memory_is_taken_by_it(tmp_path: Path) -> None:
    assert [life(tmp_path / "run", free) for free in (2 << 20, 0, 0, 0)] == ["False", "True", "True", "True"]


def test_it_is_said_when_memory_can_hold_no_state(tmp_path: Path) -> None:
    said = life(tmp_path / "run", 500_000)
    assert "no memory tier: it needs at least " in said
    assert "buffer_bytes_max" in said


def test_the_ledger_says_that_no_file_was_read(tmp_path: Path, small: Make) -> None:
    code = (
        "import os, sys; sys.path.insert(0, {root!r}); from tests.faults.conftest import Small; p = Small()\n"
        "run = p.open({run!r}); run.resume()\n"
        "for _ in range(7): p.step(); run.commit()\n"
        "os.kill(os.getpid(), 9)"
    ).format(root=str(ROOT), run=str(tmp_path / "run"))
    subprocess.run([sys.executable, "-c", code], check=False, timeout=60)
    program = small(seed=5)
    with program.open(tmp_path / "run") as run:
        assert run.resume() == 7
        assert run.ledger is not None
        assert all(item.origin.startswith(("memory of step", "record ")) for item in run.ledger)
        program.step()
        assert run.commit() == 8
        run.wait(timeout=30)
    assert everstep.restore(tmp_path / "run").step == 8


def test_a_dead_keeper_is_replaced_and_nothing_acknowledged_is_lost(tmp_path: Path, small: Make) -> None:
    program = small()

    def goes_on() -> bool:
        program.step()
        run.commit()  # this is what notices that a keeper is dead, and five may have been too soon
        return not gone(tmp_path / "run")

    def kept() -> bool:
        return goes_on() and until(lambda: run.acknowledged("memory") == run.health.committed, 1.0)

    with program.open(tmp_path / "run") as run:
        run.resume()
        for kill in (False, True, True, False):
            for _ in range(5):
                program.step()
                run.commit()
            assert until(kept)
            if kill:
                os.kill(keeper_pid(tmp_path / "run"), signal.SIGKILL)
        assert until(lambda: _committed_and_durable(program, run))
        assert run.health.not_recorded == 0
        last = run.acknowledged()
    again = small(seed=3)
    with again.open(tmp_path / "run") as run:
        assert run.resume() >= last
        assert again.bits() == program.bits()


def test_a_trainer_that_dies_before_it_is_answered_leaves_its_place(tmp_path: Path, small: Make) -> None:
    """Nobody else could have sat down there on another host, and the keeper would never have ended."""
    program = small()
    with program.open(tmp_path / "run") as run:
        run.resume()
        line, keeper = line_to(tmp_path / "run"), keeper_pid(tmp_path / "run")
        assert line is not None
        os.kill(keeper, signal.SIGSTOP)
        line.send(Hello(everstep.__version__, 1, os.getpid(), "another", False, "now"))
        line.close()
        os.kill(keeper, signal.SIGCONT)
        disk = existing(str(tmp_path / "run"))
        assert until(lambda: names.writer(1) in disk.names(""))
        assert until(lambda: not disk.locked(names.lease(1)))
        disk.release()
    assert until(lambda: gone(tmp_path / "run"))


def test_while_there_is_no_keeper_no_further_step_counts_as_kept(
    tmp_path: Path, small: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_start, call_again = threading.Event(), Caller.call_again

    def patiently(caller: Caller) -> int:
        assert may_start.wait(30)
        return call_again(caller)

    monkeypatch.setattr(Caller, "call_again", patiently)
    program = small()
    with program.open(tmp_path / "run") as run:
        run.resume()
        program.step()
        run.commit()
        assert run.acknowledged("memory") == 1
        os.kill(keeper_pid(tmp_path / "run"), signal.SIGKILL)
        for _ in range(5):
            program.step()
            run.commit()
            time.sleep(0.05)
        kept = run.acknowledged("memory")
        program.step()
        run.commit()
        assert kept == run.acknowledged("memory") < run.health.committed
        may_start.set()
        assert until(lambda: run.acknowledged("memory") == run.health.committed)


def _trains_and_dies(path: Path) -> None:
    program = Small()
    run = program.open(path)
    run.resume()
    program.step()
    run.commit()
    os._exit(3)


def test_whoever_waits_for_the_trainer_does_not_wait_for_the_keeper(tmp_path: Path) -> None:
    process = multiprocessing.get_context("spawn").Process(target=_trains_and_dies, args=(tmp_path / "run",))
    process.start()
    assert multiprocessing.connection.wait([process.sentinel], 60)
    process.join()
    assert process.exitcode == 3
    assert not gone(tmp_path / "run")


def _committed_and_durable(program: Small, run: everstep.Run) -> bool:
    program.step()
    step = run.commit()
    return run._link.wait(step, 0.5)


def test_everyone_may_look_and_the_health_says_both_tiers(tmp_path: Path, small: Make) -> None:
    program = small()
    with program.open(tmp_path / "run") as run:
        run.resume()
        for _ in range(3):
            program.step()
            run.commit()
        run.wait(timeout=30)
        report = looked(tmp_path / "run")
        assert report is not None
        assert (report.pid, report.health.memory, report.health.acknowledged) == (os.getpid(), 3, 3)
    assert until(lambda: gone(tmp_path / "run")), "a keeper whose run is closed goes"


def test_what_is_shared_is_private_to_the_user(tmp_path: Path, small: Make) -> None:
    with small().open(tmp_path / "run") as run:
        run.resume()
        home = rendezvous.directory()
        assert os.stat(home).st_mode & 0o777 == 0o700
        assert all(os.lstat(f"{home}/{name}").st_mode & 0o077 == 0 for name in os.listdir(home) if ".lock" in name)


def test_a_keeper_forgets_after_its_time(tmp_path: Path) -> None:
    code = (
        "import os, sys; sys.path.insert(0, {root!r}); import everstep; from tests.faults.conftest import Small\n"
        "p = Small(); run = p.open({run!r}, settings=everstep.Settings(linger_seconds=0.2)); run.resume()\n"
        "p.step(); run.commit(); os.kill(os.getpid(), 9)"
    ).format(root=str(ROOT), run=str(tmp_path / "run"))
    subprocess.run([sys.executable, "-c", code], check=False, timeout=60)
    assert until(lambda: gone(tmp_path / "run"))
    assert everstep.restore(tmp_path / "run").step == 1, "what memory held was made durable first"


def test_a_keeper_that_is_told_to_end_makes_durable_what_there_is(tmp_path: Path) -> None:
    with trainer(tmp_path / "run", 30, "stay") as process:
        said(process, "done")
        os.kill(keeper_pid(tmp_path / "run"), signal.SIGTERM)
    assert until(lambda: gone(tmp_path / "run"))
    assert everstep.restore(tmp_path / "run").step == 30


def test_a_keeper_that_cannot_read_what_it_is_given_forgets_as_well(tmp_path: Path) -> None:
    code = (
        "import os, sys, time; sys.path.insert(0, {root!r}); import everstep; from everstep import native\n"
        "from everstep.ring import ring as rings; from tests.faults.conftest import Small\n"
        "p = Small(); run = p.open({run!r}, settings=everstep.Settings(linger_seconds=0.2)); run.resume()\n"
        "p.step(); run.commit(); run.wait(timeout=30); ring, at = run._link.ring, run._link.pen.next\n"
        "native.store(ring.place(at) + 8 * rings.E_SEQUENCE, at + 1)\n"
        "native.store(ring.place(at) + 8 * rings.E_COUNT, 99)\n"
        "[ring.vouch(at, word) for word in (rings.E_HOST, rings.E_DEVICE)]; ring.say(rings.W_HEAD, at + 1)\n"
        "time.sleep(1); os.kill(os.getpid(), 9)"
    ).format(root=str(ROOT), run=str(tmp_path / "run"))
    subprocess.run([sys.executable, "-c", code], check=False, timeout=60)
    assert until(lambda: gone(tmp_path / "run")), "else its memory is never given back"
    assert everstep.restore(tmp_path / "run").step == 1
