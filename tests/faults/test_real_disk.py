"""A file system that is really full, really read-only. Needs root to mount one; `make crash` runs it."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

import everstep
from everstep.errors import NotAcknowledged, StoreFailed
from tests.faults.conftest import Small
from tests.faults.test_keeper import until

pytestmark = pytest.mark.crash


@pytest.fixture
def little(tmp_path: Path) -> Iterator[Path]:
    """A file system of 8 MiB."""
    home = tmp_path / "little"
    home.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8M", "tmpfs", str(home)], check=True)
    try:
        yield home
    finally:
        unmount = ["umount", str(home)]  # a keeper lets go of the directory moments after its run was closed
        assert until(lambda: subprocess.run(unmount, check=False, capture_output=True).returncode == 0)


def test_a_full_disk_loses_nothing_acknowledged_and_goes_on_when_space_returns(little: Path) -> None:
    program = Small(width=128)
    with program.open(little / "run", settings=everstep.Settings(buffer_bytes_max=2 << 20, stall_ms_max=20)) as run:
        run.resume()
        program.step()
        run.commit()
        run.wait(timeout=30)
        filler = little / "filler"
        free = os.statvfs(little)
        filler.write_bytes(bytes(free.f_bavail * free.f_frsize - (300 << 10)))
        for _ in range(60):
            program.step()
            run.commit()
        with pytest.raises(NotAcknowledged):
            run.wait(timeout=1)
        health, acknowledged = run.health, run.acknowledged()
        assert health.state == "degraded"
        assert "No space left" in str(health.error)
        assert health.committed == 61
        assert 1 <= acknowledged < 61
        filler.unlink()
        assert health.not_recorded == 0  # memory holds what the disk refuses
        assert until(lambda: run.health.state == "ok")
        program.step()
        run.commit()
        run.wait(timeout=30)
        assert run.health.state == "ok"
    again = Small(seed=5, width=128)
    with again.open(little / "run") as run:
        assert run.resume() == 62
        assert again.bits() == program.bits()


def test_a_disk_that_turns_read_only_degrades_the_run_and_refuses_a_new_one(little: Path) -> None:
    program = Small()
    with program.open(little / "run") as run:
        run.resume()
        program.step()
        run.commit()
        run.wait(timeout=30)
    subprocess.run(["mount", "-o", "remount,ro", str(little)], check=True)
    try:
        with pytest.raises(StoreFailed, match="read-only"):
            program.open(little / "run")
        assert everstep.restore(little / "run").step == 1
    finally:
        subprocess.run(["mount", "-o", "remount,rw", str(little)], check=True)
