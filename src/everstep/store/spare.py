"""Host memory that can be had now, and who else counts on it.

What the host has free is not all: a job's limit may be set on any control group above its own (Slurm, systemd, a pod
around containers), and whoever passes it is killed. Memory that processes share counts there as well. Pages of files
do too, but make way, as they do on the host.
"""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath


@dataclass(frozen=True, slots=True)
class Spare:
    nbytes: int
    whose: str
    """The host, or the group whose limit it is: all who find the same here share these bytes."""


@dataclass(frozen=True, slots=True)
class Words:
    """What a version of control groups calls its numbers; `pages` are those of files, the group's and all below it."""

    limits: tuple[str, ...]
    used: str
    pages: tuple[str, ...]


OLD = Words(("memory.limit_in_bytes",), "memory.usage_in_bytes", ("total_inactive_file", "total_active_file"))
NEW = Words(("memory.max", "memory.high"), "memory.current", ("inactive_file", "active_file"))


def spare(root: Path = Path("/")) -> Spare:
    """The least of what the host has free and what each group around this process leaves."""
    found = [_of_group(at, words, root) for at, words in _groups(root)]
    return min([_of_host(root), *(each for each in found if each is not None)], key=lambda each: each.nbytes)


def _of_host(root: Path) -> Spare:
    name, nbytes = "host", 1 << 62
    with suppress(OSError):
        name = (root / "proc/sys/kernel/random/boot_id").read_text().strip()
    with suppress(OSError, ValueError, StopIteration):
        lines = (root / "proc/meminfo").read_text().splitlines()
        nbytes = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))
    return Spare(nbytes, name)


def _groups(root: Path) -> Iterator[tuple[Path, Words]]:
    """This process's own group and all above it, as far as they can be seen from here."""
    lines: list[str] = []
    with suppress(OSError):
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    for _, controllers, path in (line.split(":", 2) for line in lines if line.count(":") >= 2):
        if controllers and "memory" not in controllers.split(","):
            continue
        top, words = (root / "sys/fs/cgroup/memory", OLD) if controllers else (root / "sys/fs/cgroup", NEW)
        own = PurePosixPath(path.lstrip("/"))
        for group in (own, *own.parents):  # in a container the last of them may be all there is
            yield top / group, words


def _of_group(at: Path, words: Words, root: Path) -> Spare | None:
    """What is left of this group's limit; None where it has none, or is not to be seen."""
    with suppress(OSError, ValueError):
        limits = [text for name in words.limits if (text := _read(at / name)) and text != "max"]
        if limits:
            pages = dict(line.split(" ", 1) for line in (at / "memory.stat").read_text().splitlines())
            used = int((at / words.used).read_text()) - sum(int(pages.get(name, 0)) for name in words.pages)
            left = min(map(int, limits)) - max(used, 0)
            return Spare(max(left, 0), f"{_of_host(root).whose} {at.stat().st_ino}")
    return None


def _read(path: Path) -> str:
    with suppress(FileNotFoundError):
        return path.read_text().strip()
    return ""
