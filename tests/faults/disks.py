"""Disks that fail on purpose, around a real one."""

import errno
import threading
from collections.abc import Callable, Sequence
from typing import Any

from everstep.store.disk import LocalDisk


class FailingDisk:
    """A disk whose calls fail while `broken` says so. Everything else goes to the real one."""

    def __init__(self, disk: LocalDisk, broken: Callable[[str, str], int | None]) -> None:
        self._disk = disk
        self._broken = broken
        self._names: dict[int, str] = {}
        self.calls: list[str] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._disk, name)

    def create(self, path: str) -> int:
        self._fail("create", path)
        handle = self._disk.create(path)
        self._names[handle] = path
        return handle

    def write(self, handle: int, pieces: Sequence[Any]) -> None:
        self._fail("write", self._names.get(handle, ""))
        self._disk.write(handle, pieces)

    def sync(self, handle: int) -> None:
        self._fail("sync", self._names.get(handle, ""))
        self._disk.sync(handle)

    def rename(self, path: str, target: str) -> None:
        self._fail("rename", target)
        self._disk.rename(path, target)

    def sync_dir(self, directory: str) -> None:
        self._fail("sync_dir", directory)
        self._disk.sync_dir(directory)

    def _fail(self, call: str, path: str) -> None:
        self.calls.append(f"{call} {path}")
        if code := self._broken(call, path):
            raise OSError(code, errno.errorcode[code])


class StalledDisk(FailingDisk):
    """A disk whose syncs of segments wait until `go` is set."""

    def __init__(self, disk: LocalDisk, go: threading.Event) -> None:
        super().__init__(disk, lambda _call, _path: None)
        self._go = go

    def sync(self, handle: int) -> None:
        if self._names.get(handle, "").endswith(".seg"):
            assert self._go.wait(60)
        super().sync(handle)


class SlowToWrite(FailingDisk):
    """A disk that writes no base until `go` is set."""

    def __init__(self, disk: LocalDisk, go: threading.Event) -> None:
        super().__init__(disk, lambda _call, _path: None)
        self._go = go

    def write(self, handle: int, pieces: Sequence[Any]) -> None:
        if self._names.get(handle, "").endswith(".safetensors"):
            assert self._go.wait(60)
        super().write(handle, pieces)
