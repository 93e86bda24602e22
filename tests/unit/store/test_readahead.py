"""Where the kernel reads far ahead it is left to that; elsewhere it is advised, in pieces that it takes whole."""

import os
from pathlib import Path

import pytest

from everstep.store import readahead
from everstep.store.disk import OpenFile


@pytest.mark.parametrize(("told", "expected"), [("128", 128 << 10), ("8192", 8 << 20), ("many", 0), (None, 0)])
def test_the_kernel_is_asked(told: str | None, expected: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if told is not None:
        (tmp_path / "read_ahead_kb").write_text(told)
    monkeypatch.setattr(readahead, "Path", lambda _told: tmp_path / "read_ahead_kb")
    readahead.ahead_bytes.cache_clear()
    assert readahead.ahead_bytes(os.makedev(8, 1)) == expected
    readahead.ahead_bytes.cache_clear()


@pytest.mark.parametrize(
    ("ahead", "far", "step"),
    [(0, False, 512 << 10), (1 << 20, False, 1 << 20), (4 << 20, True, 4 << 20), (1 << 30, True, 8 << 20)],
)
def test_all_of_it_is_advised_once(
    ahead: int, far: bool, step: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_bytes(bytes(10))
    given: list[tuple[int, int]] = []
    monkeypatch.setattr(os, "posix_fadvise", lambda _file, at, count, _kind: given.append((at, count)))
    monkeypatch.setattr("everstep.store.disk.ahead_bytes", lambda _device: ahead)
    file = OpenFile(os.open(tmp_path / "file", os.O_RDONLY), "file")
    file.expect(1, 2 * step + 3)
    file.close()
    assert file.far == far
    assert given == [(1, step), (1 + step, step), (1 + 2 * step, 3)]
