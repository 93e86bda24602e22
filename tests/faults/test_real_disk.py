"""A file system that is really full, really read-only. Needs root to mount one; `make crash` runs it."""

import contextlib
import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

import everstep
from everstep.cli.main import cli
from everstep.errors import NotAcknowledged, StoreFailed
from everstep.store import names
from everstep.store.disk import LocalDisk
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


def fill(home: Path) -> None:
    """To the last byte."""
    with (home / "filler").open("wb", buffering=0) as filler, contextlib.suppress(OSError):
        while True:
            filler.write(bytes(4096))
    assert os.statvfs(home).f_bavail == 0


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


def test_a_run_that_filled_its_disk_to_the_last_byte_can_be_pruned(little: Path) -> None:
    program = Small(width=128)
    settings = everstep.Settings(base_log_bytes_max=200_000, segment_bytes=100_000)
    with program.open(little / "run", settings=settings) as run:
        run.resume()
        for _ in range(20):
            program.step()
            run.commit()
            run.wait(timeout=30)
    fill(little)
    command = ["prune", str(little / "run"), "--keep", "bases:1", "--json"]
    kept = (little / "run" / names.RESERVE).rename(little / "elsewhere")
    refused = CliRunner().invoke(cli, command, obj={})
    assert isinstance(refused.exception, StoreFailed)
    assert "Make a few MiB of room" in str(refused.exception)
    kept.rename(little / "run" / names.RESERVE)
    pruned = CliRunner().invoke(cli, command, obj={})
    assert pruned.exit_code == 0, pruned
    assert json.loads(pruned.output)["freed_bytes"] > 1_000_000
    assert (little / "run" / names.RESERVE).stat().st_size > 0
    again = Small(seed=5, width=128)
    with again.open(little / "run") as run:
        assert run.resume() == 20
        assert again.bits() == program.bits()


def test_a_lease_taken_on_a_full_disk_says_whose_it_is(little: Path) -> None:
    disk = LocalDisk(str(little))
    disk.close(disk.lock("lease", b"the first".ljust(128)) or -1)
    fill(little)
    held = disk.lock("lease", b"the second".ljust(128))
    assert held is not None
    assert (little / "lease").read_bytes() == b"the second".ljust(128)
    with pytest.raises(OSError, match="No space left"):
        disk.lock("another", b"the second".ljust(128))
    assert not disk.locked("another")
    disk.close(held)
    disk.release()
