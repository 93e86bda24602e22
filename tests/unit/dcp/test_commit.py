"""A save that ends at any call of the system leaves the checkpoint before it, or the new one; the next save sweeps."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch.distributed.checkpoint as torch_dcp
from torch.distributed.checkpoint.api import CheckpointException

from everstep.dcp import names
from everstep.store import disk as store
from everstep.store.disk import LocalDisk
from tests.unit.dcp.states import differences, load, made, refused, save

CHANGING = ("make_dir", "create", "write", "sync", "rename", "remove", "sync_dir", "lock")


class Killed(BaseException):
    """The process is gone: nothing it would have done afterwards happens."""


class Kill:
    """Lets `left` changing calls through, and none after them."""

    def __init__(self, left: int) -> None:
        self.left = left
        self.over = False

    def wrapped(self, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any) -> Any:
            self.left -= 1
            if self.left < 0:
                self.over = True
                raise Killed
            return real(*args)

        return call


def killed_at(count: int, work: Callable[[], None]) -> bool:
    """Whether `work` was still going on at its changing call number `count`."""
    kill = Kill(count)
    with pytest.MonkeyPatch.context() as patch:
        for name in CHANGING:
            patch.setattr(LocalDisk, name, kill.wrapped(getattr(LocalDisk, name)))
        try:
            work()
        except (Killed, CheckpointException):
            assert kill.over
    return kill.over


def whole(path: Path, allowed: tuple[int, ...]) -> int | None:
    """Which state is there, by torch's own reader and by ours; None when both refuse."""
    if not (path / names.METADATA).exists():
        refused(lambda: load(path), "no such checkpoint|.metadata is missing")
        return None
    found = load(path)
    assert differences(load(path, torch_dcp.FileSystemReader(path)), found) == []
    assert found["epoch"] in allowed
    assert differences(found, made(found["epoch"])) == []
    return int(found["epoch"])


def swept(parent: Path) -> None:
    """Only one save's files are left, and nothing beside the folder."""
    assert [path.name for path in parent.iterdir()] == ["a"]
    kinds = sorted(path.suffix for path in (parent / "a").iterdir() if path.name != names.METADATA)
    assert kinds == [".distcp", ".json", ".lease"]


@pytest.mark.parametrize("before", ["nothing", "an empty folder", "ours", "torch's"])
def test_a_save_killed_at_any_call_leaves_the_old_one_or_the_new_one(before: str, tmp_path: Path) -> None:
    seen, count = set(), 0
    while True:
        parent = tmp_path / str(count)
        path = parent / "a"
        old: int | None = 1
        if before == "ours":
            save(path, made(1))
        elif before == "torch's":
            save(path, made(1), torch_dcp.FileSystemWriter(path))
        else:
            old = None
            (path if before == "an empty folder" else parent).mkdir(parents=True)
        was_killed = killed_at(count, lambda path=path: save(path, made(2)))
        found = whole(path, (1, 2))
        assert found in (old, 2)
        seen.add(found)
        save(path, made(3))
        assert whole(path, (3,)) == 3
        swept(parent)
        if not was_killed:
            break
        count += 1
    assert seen == {old, 2}
    assert count > 8


@pytest.mark.parametrize("name", ["create", "write", "sync", "sync_dir", "rename"])
@pytest.mark.parametrize("before", [False, True])
def test_a_disk_that_fails_once_fails_the_save_and_nothing_else(name: str, before: bool, tmp_path: Path) -> None:
    path = tmp_path / "a"
    if before:
        save(path, made(1))
    real, calls = getattr(LocalDisk, name), []

    def fails(*args: Any) -> Any:
        calls.append(args)
        if len(calls) == 1:
            raise OSError(28, "No space left on device")
        return real(*args)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LocalDisk, name, fails)
        refused(lambda: save(path, made(2)), "No space left on device")
    assert whole(path, (1,)) == (1 if before else None)
    save(path, made(3))
    assert whole(path, (3,)) == 3
    swept(tmp_path)


def test_every_part_is_synced_before_the_folder_gets_its_name(tmp_path: Path) -> None:
    happened: list[tuple[str, str]] = []
    with pytest.MonkeyPatch.context() as patch:
        for name in ("create", "sync", "sync_dir", "rename"):
            real = getattr(LocalDisk, name)

            def noted(disk: LocalDisk, *args: Any, real: Any = real, name: str = name) -> Any:
                happened.append((name, str(args[-1])))
                return real(disk, *args)

            patch.setattr(LocalDisk, name, noted)
        save(tmp_path / "a", made(1))
    order = [name for name, _ in happened]
    assert order == ["create", "sync", "sync_dir", "create", "sync", "sync_dir", "create", "sync", "sync_dir", "rename",
                     "sync_dir"]  # fmt: skip
    assert happened[-2] == ("rename", "a")


def test_the_new_index_replaces_the_old_one_after_everything_else_is_durable(tmp_path: Path) -> None:
    save(tmp_path / "a", made(1))
    seen: list[bool] = []
    real = store.LocalDisk.rename

    def looked(disk: LocalDisk, path: str, target: str) -> None:
        if target == names.METADATA:
            seen.append(whole(tmp_path / "a", (1,)) == 1)
        real(disk, path, target)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LocalDisk, "rename", looked)
        save(tmp_path / "a", made(2))
    assert seen == [True]
    assert whole(tmp_path / "a", (2,)) == 2


def test_a_link_is_followed_and_stays_a_link(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    os.symlink("real", tmp_path / "a")
    save(tmp_path / "a", made(1))
    assert (tmp_path / "a").is_symlink()
    assert whole(tmp_path / "real", (1,)) == 1
