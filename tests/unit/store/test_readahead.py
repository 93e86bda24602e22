"""Advice is given in pieces that the kernel takes whole."""

import os
from pathlib import Path

import pytest

from everstep.store import readahead
from everstep.store.disk import OpenFile


@pytest.mark.parametrize(
    ("told", "expected"),
    [("128", 512 << 10), ("4096", 4 << 20), ("65536", 8 << 20), ("many", 512 << 10), (None, 512 << 10)],
)
def test_as_much_as_the_kernel_reads_ahead(
    told: str | None, expected: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "read_ahead_kb").write_text(told or "")
    where = tmp_path / ("read_ahead_kb" if told else "nowhere")
    monkeypatch.setattr(readahead, "Path", lambda _told: where)
    readahead.advice_bytes.cache_clear()
    assert readahead.advice_bytes(os.makedev(8, 1)) == expected
    readahead.advice_bytes.cache_clear()


def test_all_of_it_is_advised_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_bytes(bytes(10))
    given: list[tuple[int, int]] = []
    monkeypatch.setattr(os, "posix_fadvise", lambda _file, at, count, _kind: given.append((at, count)))
    monkeypatch.setattr("everstep.store.disk.advice_bytes", lambda _device: 4)
    file = OpenFile(os.open(tmp_path / "file", os.O_RDONLY), "file")
    file.expect(1, 9)
    file.close()
    assert given == [(1, 4), (5, 4), (9, 1)]
