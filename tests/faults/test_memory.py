"""Real limits on memory: what the kernel ends is resumed, and we never are the reason that it ends anything."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.test_keeper import ROOT, until

CONTROL = Path("/sys/fs/cgroup")
TRIES = 4
TRAINING_MIB = 220
"""What that program takes beside torch: parameters, gradients, moments, a batch."""
IMPORTED = "import torch; print(next(line for line in open('/proc/self/status') if line.startswith('RssAnon')))"


class Group:
    """A control group with a limit on memory."""

    def __init__(self, at: Path, limit: str) -> None:
        self.at, self._limit = at, limit

    def allow(self, mib: int) -> None:
        (self.at / self._limit).write_text(str(mib << 20))

    def start(self, *arguments: object) -> "subprocess.Popen[str]":
        enter = f'echo $$ > {self.at}/cgroup.procs && exec "$@"'
        command = ["sh", "-c", enter, "sh", sys.executable, "-m", "tests.faults.heavy", *map(str, arguments)]
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT)

    def ran(self, *arguments: object) -> tuple[int, list[list[str]], str]:
        process = self.start(*arguments)
        said, errors = process.communicate(timeout=120)
        return process.returncode, [line.split() for line in said.splitlines()], errors

    @property
    def killed(self) -> int:
        name = "memory.events" if (self.at / "memory.events").exists() else "memory.oom_control"
        words = dict(line.split() for line in (self.at / name).read_text().splitlines())
        return int(words["oom_kill"])


@pytest.fixture
def group() -> Iterator[Group]:
    old = (CONTROL / "memory").is_dir()
    at = CONTROL / ("memory" if old else ".") / f"everstep-test-{os.getpid()}"
    try:
        if not old and "memory" not in (CONTROL / "cgroup.subtree_control").read_text():
            raise PermissionError
        at.mkdir()
    except OSError:
        pytest.skip("needs root and a control group for memory")
    try:
        yield Group(at, "memory.limit_in_bytes" if old else "memory.max")
    finally:
        for pid in map(int, (at / "cgroup.procs").read_text().split()):
            os.kill(pid, signal.SIGTERM)  # a keeper that waits for the next trainer
        assert until(lambda: not (at / "cgroup.procs").read_text())
        at.rmdir()


@pytest.fixture(scope="module")
def plain_mib() -> int:
    """Enough for training without us."""
    told = subprocess.run([sys.executable, "-c", IMPORTED], check=True, capture_output=True, text=True, timeout=60)
    return int(told.stdout.split()[1]) // 1024 + TRAINING_MIB


def last(said: list[list[str]], word: str) -> list[str]:
    return [line for line in said if line[0] == word][-1]


def test_a_trainer_that_the_kernel_ended_for_its_memory_goes_on_from_the_keepers(group: Group, tmp_path: Path) -> None:
    group.allow(1400)
    for at in range(TRIES):
        path, before = tmp_path / f"run{at}", group.killed
        code, said, _ = group.ran(path, 60, 40)
        assert code == -signal.SIGKILL
        if (
            group.killed == before + 1
        ):  # on a busy machine the kernel may end the keeper as well, before it has got back
            break  # what the trainer had: nobody can help that
    else:
        pytest.fail("the kernel ends the keeper as well")
    newest = int(last(said, "memory")[1])
    assert newest > 3
    code, said, errors = group.ran(path, 60, 0)
    assert code == 0, errors
    assert int(said[0][1]) >= newest
    assert "memory" in said[0][2:]
    code, plain, _ = group.ran(tmp_path / "other", 60, 0)
    assert last(said, "done") == last(plain, "done")


@pytest.mark.parametrize("more", [0, 140, 260, 600])
def test_whatever_is_left_training_is_not_ended_for_our_memory(
    more: int, group: Group, plain_mib: int, tmp_path: Path
) -> None:
    """It is refused before it begins where that is too little."""
    group.allow(plain_mib + more)
    code, said, errors = group.ran(tmp_path / "run", 12, 0)
    assert group.killed == 0
    if code:
        assert "TooLittleMemory: to record its steps this program needs" in errors
        assert more < 600
        assert not list((tmp_path / "run").rglob("*.seg")), "nothing was begun"
    else:
        assert said[-1][0] == "done"
        assert more > 0


def test_ranks_share_what_their_group_leaves(group: Group, plain_mib: int, tmp_path: Path) -> None:
    group.allow(2000)
    ranks = [group.start(tmp_path / "run", 6, 0, rank, 2) for rank in range(2)]
    ended = [rank.communicate(timeout=120) for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0], ended
    held = [int(last([line.split() for line in said.splitlines()], "holds")[1]) for said, _ in ended]
    assert held[0] == held[1]
    assert 0 < sum(held) < 0.75 * (2000 - 2 * (plain_mib - TRAINING_MIB))
    assert group.killed == 0
