"""The system calls we allow do what they say, also where the system does less than it was asked."""

import os
import random
from collections.abc import Sequence
from pathlib import Path

import pytest

from everstep.errors import NotARun, StoreFailed
from everstep.store import disk as disks
from everstep.store.disk import IOV_MAX, LocalDisk, claim, created, existing, publish


@pytest.fixture
def disk(tmp_path: Path) -> LocalDisk:
    (tmp_path / "w").mkdir()
    return LocalDisk(str(tmp_path))


def put(disk: LocalDisk, path: str, pieces: Sequence[bytes]) -> bytes:
    handle = disk.create(path)
    disk.write(handle, pieces)
    disk.sync(handle)
    disk.close(handle)
    return (Path(disk.root) / path).read_bytes()


@pytest.mark.parametrize("count", [0, 1, IOV_MAX - 1, IOV_MAX, IOV_MAX + 1, 3 * IOV_MAX + 7])
def test_any_number_of_pieces_is_written_in_order(disk: LocalDisk, count: int) -> None:
    pieces = [str(at).encode() for at in range(count)]
    assert put(disk, "w/a", pieces) == b"".join(pieces)


def test_empty_pieces_write_nothing_and_do_not_end_the_writing(disk: LocalDisk) -> None:
    assert put(disk, "w/a", [b"", b"x", b"", b"y", b""]) == b"xy"


@pytest.mark.parametrize("seed", range(5))
def test_short_writes_lose_nothing(disk: LocalDisk, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """A write may take fewer bytes than given: a signal, the 2 GiB limit."""
    source, real = random.Random(seed), os.writev
    pieces = [source.randbytes(source.randrange(50)) for _ in range(100)]

    def short(handle: int, views: Sequence[memoryview]) -> int:
        data = b"".join(views)
        return real(handle, [data[: source.randint(1, len(data))]])

    monkeypatch.setattr(disks.os, "writev", short)
    assert put(disk, "w/a", pieces) == b"".join(pieces)


def test_short_reads_lose_nothing(disk: LocalDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    put(disk, "w/a", [bytes(range(200))])
    real, real_pread = os.preadv, os.pread
    monkeypatch.setattr(disks.os, "preadv", lambda fd, views, at: real(fd, [views[0][:7]], at))
    monkeypatch.setattr(disks.os, "pread", lambda fd, length, at: real_pread(fd, min(length, 7), at))
    source = disk.source("w/a")
    assert source.read(3, 190) == bytes(range(3, 193))
    source.close()


def test_a_file_that_became_shorter_is_an_error_and_not_garbage(disk: LocalDisk, tmp_path: Path) -> None:
    put(disk, "w/a", [bytes(100)])
    source = disk.source("w/a")
    os.truncate(tmp_path / "w" / "a", 10)
    with pytest.raises(EOFError):
        source.read(0, source.size)
    source.close()


def test_create_never_opens_what_is_there(disk: LocalDisk, tmp_path: Path) -> None:
    (tmp_path / "w" / "a").symlink_to(tmp_path / "victim")
    with pytest.raises(FileExistsError):
        disk.create("w/a")
    assert not (tmp_path / "victim").exists()


def test_source_does_not_follow_a_link(disk: LocalDisk, tmp_path: Path) -> None:
    (tmp_path / "w" / "a").symlink_to("/etc/passwd")
    with pytest.raises(OSError, match="symbolic"):
        disk.source("w/a")


def test_a_directory_swapped_for_a_link_after_opening_changes_nothing(disk: LocalDisk, tmp_path: Path) -> None:
    put(disk, "w/a", [b"mine"])
    (tmp_path / "w").rename(tmp_path / "moved")
    (tmp_path / "other").mkdir()
    (tmp_path / "w").symlink_to(tmp_path / "other")
    put_handle = disk.create("w/b")
    disk.close(put_handle)
    assert (tmp_path / "moved" / "b").exists()
    assert not (tmp_path / "other" / "b").exists()


def test_publish_replaces_and_leaves_no_temporary(disk: LocalDisk, tmp_path: Path) -> None:
    for text in (b"one", b"two"):
        publish(disk, "w/a", text)
        assert (tmp_path / "w" / "a").read_bytes() == text
    assert os.listdir(tmp_path / "w") == ["a"]


def test_of_two_that_claim_one_wins(disk: LocalDisk, tmp_path: Path) -> None:
    assert claim(disk, "w/a", b"first")
    assert not claim(disk, "w/a", b"second")
    assert (tmp_path / "w" / "a").read_bytes() == b"first"
    assert os.listdir(tmp_path / "w") == ["a"]


class Trace:
    """A disk that writes down what is asked of it."""

    def __init__(self, inner: LocalDisk) -> None:
        self.inner = inner
        self.calls: list[str] = []

    def __getattr__(self, name: str) -> object:
        def call(*args: object) -> object:
            self.calls.append(name)
            return getattr(self.inner, name)(*args)

        return call


def test_publish_syncs_the_bytes_before_the_name_and_the_name_last(disk: LocalDisk) -> None:
    trace = Trace(disk)
    publish(trace, "w/a", b"x")  # type: ignore[arg-type]
    assert trace.calls == ["create", "write", "sync", "close", "rename", "sync_dir"]


def test_claim_syncs_the_bytes_before_the_name_and_the_name_last(disk: LocalDisk) -> None:
    trace = Trace(disk)
    claim(trace, "w/a", b"x")  # type: ignore[arg-type]
    assert trace.calls == ["create", "write", "sync", "close", "link", "remove", "sync_dir"]


def test_a_lock_is_held_by_one_open_file_and_survives_the_closing_of_another(disk: LocalDisk, tmp_path: Path) -> None:
    held = disk.lock("w/lease", b"me")
    assert held is not None
    (tmp_path / "w" / "lease").read_bytes()  # a POSIX lock would be gone after this
    assert disk.lock("w/lease", b"you") is None
    assert (tmp_path / "w" / "lease").read_bytes() == b"me"
    disk.close(held)
    again = disk.lock("w/lease", b"you")
    assert again is not None
    disk.close(again)


def test_a_directory_is_made_with_its_parents_and_private(tmp_path: Path) -> None:
    created(str(tmp_path / "a" / "b")).release()
    assert (tmp_path / "a").stat().st_mode & 0o777 == (tmp_path / "a" / "b").stat().st_mode & 0o777 == 0o700


def test_what_is_no_directory_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for path in ("file", "none"):
        with pytest.raises(NotARun, match=path):
            existing(str(tmp_path / path))
    for path in ("file", "file/run"):
        with pytest.raises(StoreFailed):
            created(str(tmp_path / path))
