"""Several hosts on one machine: a keeper is found in shared memory, and each of these has its own. Disks that are soon
full. Needs root."""

import ctypes
import os
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from tests.crash.observer import in_child

CLONE_NEWNS = 0x20000
MS_REC_PRIVATE = 0x4000 | 0x40000
MS_REMOUNT, MNT_DETACH = 0x20, 2


@dataclass(frozen=True, slots=True)
class Host:
    """`holder` keeps it up: a process that does nothing else. 0: this very host."""

    holder: int = 0

    @classmethod
    def up(cls) -> Self:
        pid, reading = in_child(_hold)
        ready = os.read(reading, 100)
        os.close(reading)
        if not ready.startswith(b"up"):
            raise OSError(f"no host could be made: {ready.decode()}")
        return cls(pid)

    def down(self) -> None:
        """Its processes go on."""
        if self.holder:
            os.kill(self.holder, signal.SIGKILL)
            os.waitpid(self.holder, 0)

    def enter(self) -> None:
        """Be a process of this host, from now on. Not for one that has threads."""
        if self.holder:
            namespace = os.open(f"/proc/{self.holder}/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
            _call("setns", namespace, CLONE_NEWNS)
            os.close(namespace)

    def keeper_of(self, run: Path) -> int | None:
        """The process that keeps this run here."""
        ours = _namespace(self.holder or os.getpid())
        for pid in map(int, filter(str.isdigit, os.listdir("/proc"))):
            try:
                words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
                if b"everstep.keeper" in words and os.fsencode(run) in words and _namespace(pid) == ours:
                    return pid
            except OSError:
                continue  # it has ended
        return None

    def tell_keeper(self, run: Path, number: signal.Signals) -> bool:
        """Whether there is one."""
        pid = self.keeper_of(run)
        if pid is not None:
            try:
                os.kill(pid, number)
            except ProcessLookupError:
                return False
        return pid is not None


@dataclass(frozen=True, slots=True)
class Disk:
    """One that is soon full."""

    path: str
    nbytes: int

    @classmethod
    def mounted(cls, path: str, nbytes: int) -> Self:
        os.mkdir(path)
        _call("mount", b"tmpfs", os.fsencode(path), b"tmpfs", 0, b"size=%d" % nbytes)
        return cls(path, nbytes)

    def grown(self) -> Self:
        """Somebody made room."""
        nbytes = 2 * self.nbytes
        _call("mount", b"tmpfs", os.fsencode(self.path), b"tmpfs", MS_REMOUNT, b"size=%d" % nbytes)
        return type(self)(self.path, nbytes)

    def unmount(self) -> None:
        _call("umount2", os.fsencode(self.path), MNT_DETACH)


def _hold(report: object) -> None:
    assert callable(report)
    _call("unshare", CLONE_NEWNS)
    _call("mount", b"none", b"/", None, MS_REC_PRIVATE, None)
    _call("mount", b"tmpfs", b"/dev/shm", b"tmpfs", 0, b"size=64m")
    report("up")
    signal.pause()


def _call(name: str, *arguments: object) -> None:
    if getattr(ctypes.CDLL(None, use_errno=True), name)(*arguments):
        raise OSError(ctypes.get_errno(), f"{name}: {os.strerror(ctypes.get_errno())}")


def _namespace(pid: int) -> str:
    return os.readlink(f"/proc/{pid}/ns/mnt")
