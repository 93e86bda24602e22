"""A disk that fills up, fails or stalls costs acknowledgement, never a step that was acknowledged, never training."""

import errno
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import everstep
from everstep.errors import NotAcknowledged, StoreFailed
from everstep.store import names, prune
from everstep.store.disk import existing
from everstep.store.manifest import load_newest
from tests.faults.conftest import Small
from tests.faults.disks import FailingDisk, StalledDisk
from tests.faults.test_keeper import until
from tests.unit.cli.runs import look, proved

Around = Callable[[Callable[[Any], Any]], list[Any]]


def resumed(path: Path, width: int = 8) -> tuple[int, list[bytes]]:
    program = Small(seed=7, width=width)
    with program.open(path) as run:
        return run.resume(), program.bits()


@pytest.mark.parametrize("call", ["write", "sync", "create"])
def test_a_full_disk_delays_acknowledgement_until_space_returns(call: str, tmp_path: Path, around: Around) -> None:
    full = threading.Event()
    around(
        lambda disk: FailingDisk(
            disk, lambda at, path: errno.ENOSPC if full.is_set() and at == call and "w000" in path else None
        )
    )
    program = Small()
    with program.open(tmp_path / "run", settings=everstep.Settings(segment_bytes=3000)) as run:
        run.resume()
        for _ in range(5):
            program.step()
            run.commit()
        run.wait(timeout=30)
        full.set()
        for _ in range(5):
            program.step()
            run.commit()
        with pytest.raises(NotAcknowledged, match="The run is degraded"):
            run.wait(timeout=0.3)
        assert run.acknowledged() >= 5
        full.clear()
        run.wait(timeout=30)
        assert (run.health.state, run.health.error, run.health.not_recorded) == ("ok", None, 0)
    assert resumed(tmp_path / "run") == (10, program.bits())


def test_a_disk_too_full_to_let_go_of_old_bases_keeps_the_new_one_as_it_is(
    tmp_path: Path, around: Around, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The memory that it was written from is given to the next state, and may not be read again."""
    around(lambda disk: disk)
    full = threading.Event()
    real = prune.apply

    def apply(*given: Any) -> Any:
        if full.is_set():
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(*given)

    monkeypatch.setattr(prune, "apply", apply)
    program = Small()
    settings = everstep.Settings(source="state", retain_bytes_max=1)
    with program.open(tmp_path / "run", settings=settings) as run:
        run.resume()
        full.set()
        for _ in range(30):
            program.step()
            run.commit()
            time.sleep(0.01)
        assert until(lambda: (run.health.error or "").startswith("retention: No space left"))
        assert look(tmp_path / "run").newest > 0
        assert proved(tmp_path / "run").damages == []
        full.clear()
        run.wait(timeout=30)
        assert until(lambda: (run.health.state, run.health.error) == ("ok", None))
    assert proved(tmp_path / "run").damages == []
    assert resumed(tmp_path / "run") == (30, program.bits())


def test_without_a_memory_tier_no_step_is_safe_that_the_disk_may_refuse(tmp_path: Path, around: Around) -> None:
    full = threading.Event()
    around(lambda disk: FailingDisk(disk, lambda at, _path: errno.ENOSPC if full.is_set() and at == "write" else None))
    program = Small(width=64)
    settings = everstep.Settings(buffer_bytes_max=600_000)
    with program.open(tmp_path / "run", settings=settings) as run:
        run.resume()
        assert any("no memory tier" in text for text in run.health.warnings)
        program.step()
        run.commit()
        run.wait(timeout=30)
        full.set()
        for _ in range(5):
            program.step()
            run.commit()
        assert until(lambda: run.health.state == "degraded")
        assert run.acknowledged("memory") == run.acknowledged("disk") == 1
        full.clear()
        run.wait(timeout=30)
        assert run.acknowledged("memory") == run.acknowledged("disk") == 6


def test_a_failed_sync_is_never_repeated_on_the_same_file(tmp_path: Path, around: Around) -> None:
    """Linux marks failed pages clean: a second fsync would report a success that did not happen."""
    failures = iter([None, None, None, errno.EIO])
    made = around(
        lambda disk: FailingDisk(
            disk, lambda at, path: next(failures, None) if at == "sync" and ".seg" in path else None
        )
    )
    program = Small()
    with program.open(tmp_path / "run") as run:
        run.resume()
        for _ in range(6):
            program.step()
            run.commit()
            run.wait(timeout=30)
    segments = [call for call in made[0].calls if call.startswith("sync ") and call.endswith(".seg")]
    assert segments[3].endswith("-00000000.seg")
    assert all(call.endswith("-00000001.seg") for call in segments[4:])
    assert resumed(tmp_path / "run") == (6, program.bits())


def test_a_stalled_disk_costs_a_bounded_wait_and_then_a_visible_gap(tmp_path: Path, around: Around) -> None:
    go = threading.Event()
    go.set()
    around(lambda disk: StalledDisk(disk, go))
    program = Small(width=64)
    settings = everstep.Settings(buffer_bytes_max=450_000, stall_ms_max=10)
    with program.open(tmp_path / "run", settings=settings) as run:
        run.resume()
        program.step()
        run.commit()
        run.wait(timeout=30)
        go.clear()
        for _ in range(40):
            program.step()
            run.commit()
        health = run.health
        assert health.committed == 41
        assert health.not_recorded > 0
        assert health.queued_bytes <= run._link.ring.data_bytes < 2 << 20
        assert run.acknowledged() == 1
        with pytest.raises(NotAcknowledged, match="step 41 was not recorded"):
            run.wait(timeout=0.2)
        go.set()
        while 2 * run._link.pen.used_bytes > run._link.ring.data_bytes:
            run._link.wait(run.acknowledged() + 1, 10)
        program.step()
        run.commit()  # a base closes the gap
        run.wait(timeout=30)
    assert resumed(tmp_path / "run", width=64) == (42, program.bits())


def test_a_disk_that_refuses_for_long_leaves_memory_every_step(tmp_path: Path, around: Around) -> None:
    full = threading.Event()
    around(lambda disk: FailingDisk(disk, lambda at, _path: errno.ENOSPC if full.is_set() and at == "write" else None))
    program = Small(width=64)
    with program.open(tmp_path / "run", settings=everstep.Settings(buffer_bytes_max=3 << 20, stall_ms_max=2000)) as run:
        run.resume()
        program.step()
        run.commit()
        run.wait(timeout=30)
        full.set()
        for step in range(2, 301):
            program.step()
            assert run.commit() == step
        assert (run.health.not_recorded, run.acknowledged("memory"), run.health.state) == (0, 300, "degraded")
        assert run.acknowledged("disk") < 300
        full.clear()
        run.wait(timeout=60)
        assert run.health.error is None
    assert resumed(tmp_path / "run", width=64) == (300, program.bits())


def files(home: Path) -> set[str]:
    return {path.name for path in (home / "run" / "w00000").glob("b*.safetensors")}


def named(run: everstep.Run) -> set[str]:
    """The bases that count. Between two tries of writing one there is no other file."""
    manifest = load_newest(existing(run._url), 0)
    assert manifest is not None
    return {names.short(names.tensors(0, entry.step, entry.epoch)) for entry in manifest.bases}


def test_a_base_that_cannot_be_written_does_not_hold_up_the_log(tmp_path: Path, around: Around) -> None:
    full = threading.Event()
    around(
        lambda disk: FailingDisk(
            disk, lambda at, path: errno.ENOSPC if full.is_set() and at == "write" and "/b" in path else None
        )
    )
    program = Small()
    with program.open(tmp_path / "run", settings=everstep.Settings(base_log_bytes_max=8000)) as run:
        run.resume()
        program.step()
        run.commit()
        run.wait(timeout=30)
        full.set()
        for _ in range(10):
            program.step()
            run.commit()
        run.wait(timeout=30)
        assert run.acknowledged() == 11
        assert any(files(tmp_path) == named(run) for _ in range(1000)), "a half-written base takes no room"
        full.clear()
    assert resumed(tmp_path / "run") == (11, program.bits())


def test_a_directory_that_cannot_be_written_is_refused_at_once(tmp_path: Path, small: Callable[..., Small]) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(StoreFailed, match="cannot be used for a run"):
        small().open(tmp_path / "file")
    with pytest.raises(StoreFailed, match="cannot be used for a run"):
        small().open(tmp_path / "file" / "below")
    if os.geteuid():
        (tmp_path / "locked").mkdir(mode=0o500)
        with pytest.raises(StoreFailed, match="read-only"):
            small().open(tmp_path / "locked")


def test_a_read_only_file_system_is_refused_at_once(
    tmp_path: Path, small: Callable[..., Small], monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.statvfs(tmp_path)

    class ReadOnly:
        f_flag = real.f_flag | os.ST_RDONLY

    monkeypatch.setattr(os, "statvfs", lambda _path: ReadOnly)
    with pytest.raises(StoreFailed, match="read-only for this user"):
        small().open(tmp_path / "run")
