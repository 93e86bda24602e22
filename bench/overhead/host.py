"""Host memory, as the kernel counts it."""

import os
from collections.abc import Iterator
from pathlib import Path

PROC = Path("/proc")
KIB = 1024


def held_bytes(directory: Path) -> int:
    """Memory of this process, of all it started, and of whoever was started to serve `directory`.

    Proportional shares: what several of them map together, such as a ring in shared memory, counts once.
    """
    return sum(_share(process) for process in _family(directory))


def taken_bytes() -> int:
    """What the whole machine cannot give out any more. Sees memory pinned by a driver; needs a machine to itself."""
    lines = (PROC / "meminfo").read_text().splitlines()
    kib = {name: int(rest.split()[0]) for name, _, rest in (line.partition(":") for line in lines)}
    return KIB * (kib["MemTotal"] - kib["MemAvailable"])


def _family(directory: Path) -> Iterator[Path]:
    parents = {process.name: parent for process in PROC.glob("[0-9]*") if (parent := _parent(process)) is not None}
    for process in parents:
        line = [process]
        while line[-1] in parents:
            line.append(parents[line[-1]])
        if str(os.getpid()) in line or str(directory) in _command(PROC / process):
            yield PROC / process


def _parent(process: Path) -> str | None:
    try:
        return (process / "stat").read_text().rpartition(")")[2].split()[1]
    except OSError:  # it has ended
        return None


def _command(process: Path) -> str:
    try:
        return (process / "cmdline").read_bytes().decode(errors="replace")
    except OSError:
        return ""


def _share(process: Path) -> int:
    try:
        lines = (process / "smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return KIB * sum(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
