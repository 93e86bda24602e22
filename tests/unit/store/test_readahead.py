"""Where the kernel reads far ahead it is left to that; elsewhere it is advised, in pieces that it takes whole."""

import os
from pathlib import Path

import pytest

from everstep.store import readahead
from everstep.store.disk import OpenFile

SIZE = 3_000_000


@pytest.mark.parametrize(("told", "expected"), [("128", 128 << 10), ("8192", 8 << 20), ("many", 0), (None, 0)])
def test_the_kernel_is_asked(told: str | None, expected: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if told is not None:
        (tmp_path / "read_ahead_kb").write_text(told)
    monkeypatch.setattr(readahead, "Path", lambda _told: tmp_path / "read_ahead_kb")
    readahead.ahead_bytes.cache_clear()
    assert readahead.ahead_bytes(os.makedev(8, 1)) == expected
    readahead.ahead_bytes.cache_clear()


@pytest.mark.parametrize(("ahead", "step"), [(0, 512 << 10), (1 << 20, 1 << 20)])
def test_all_of_it_is_advised_once(ahead: int, step: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[tuple[int, int]] = []
    monkeypatch.setattr(os, "posix_fadvise", lambda _file, at, count, _kind: given.append((at, count)))
    expecting(tmp_path, ahead, 1, 2 * step + 3, monkeypatch)
    assert given == [(1, step), (1 + step, step), (1 + 2 * step, 3)]


@pytest.mark.parametrize("ahead", [4 << 20, 1 << 30])
def test_all_of_it_is_read_to_nowhere_once(ahead: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    passed: list[tuple[int, int]] = []

    def send(nowhere: int, file: int, offset: int, count: int) -> int:
        done = sendfile(nowhere, file, offset, min(count, 700_000))  # as a signal would cut it
        passed.append((offset, done))
        return done

    sendfile = os.sendfile
    monkeypatch.setattr(os, "sendfile", send)
    expecting(tmp_path, ahead, 5, 2_000_000, monkeypatch)
    assert passed == [(5, 700_000), (700_005, 700_000), (1_400_005, 600_000)]
    expecting(tmp_path, ahead, SIZE - 10, 2_000_000, monkeypatch)
    assert passed[3:] == [(SIZE - 10, 10), (SIZE, 0)], "the file ends there"


def expecting(home: Path, ahead: int, offset: int, length: int, monkeypatch: pytest.MonkeyPatch) -> None:
    (home / "file").write_bytes(bytes(SIZE))
    monkeypatch.setattr("everstep.store.disk.ahead_bytes", lambda _device: ahead)
    file = OpenFile(os.open(home / "file", os.O_RDONLY), "file")
    file.expect(offset, length)
    file.close()
