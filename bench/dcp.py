"""What `everstep.dcp` costs beside torch's own writer and reader, on one state and one disk.

python -m bench.dcp [--quick] [--json FILE]
"""

import logging
import shutil
import statistics
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path

import torch
import torch.distributed.checkpoint as torch_dcp

from bench.harness import Row, main, seconds
from everstep.dcp import Reader, Writer

MIB = 1 << 20
SLOWER_PCT_MAX = "<= 10"


def measure(quick: bool) -> list[Row]:
    warnings.simplefilter("ignore")  # torch says at every call that this is one process
    logging.disable(logging.WARNING)
    home = Path(tempfile.mkdtemp(prefix="everstep-bench-", dir=Path.cwd()))  # a disk: /tmp may be memory
    try:
        rows = []
        sizes = ((8, 32 * MIB, 3), (1000, 8 << 10, 3)) if quick else ((32, 32 * MIB, 15), (4000, 8 << 10, 7))
        for count, nbytes, turns in sizes:
            rows += compare(home, titled(count, nbytes), state(count, nbytes), turns)
        return [*rows, *memory(home, quick)]
    finally:
        shutil.rmtree(home)


def state(count: int, nbytes: int) -> dict[str, torch.Tensor]:
    return {f"layers.{at}.weight": torch.randn(nbytes // 4) for at in range(count)}


def titled(count: int, nbytes: int) -> str:
    return f"{count * nbytes / 1e9:.2g} GB in {count:,} tensors"


def compare(home: Path, case: str, held: dict[str, torch.Tensor], turns: int) -> list[Row]:
    """Save and load by both, in turns. Each save is into a new folder, as a training loop's are."""
    blank = {name: torch.zeros_like(tensor) for name, tensor in held.items()}
    nbytes = sum(tensor.nbytes for tensor in held.values())
    writers = {"torch": torch_dcp.FileSystemWriter, "ours": Writer}
    readers = {"torch": torch_dcp.FileSystemReader, "ours": Reader}
    taken: dict[str, list[float]] = {f"{who} {what}": [] for who in writers for what in ("save", "load")}
    for turn in range(turns + 1):
        for who in writers if turn % 2 else reversed(writers):
            path = home / who
            save = seconds(lambda: torch_dcp.save(held, storage_writer=writers[who](path)))  # noqa: B023
            load = seconds(lambda: torch_dcp.load(blank, storage_reader=readers[who](path)))  # noqa: B023
            shutil.rmtree(path)
            if turn:  # the first warms up
                taken[f"{who} save"].append(save)
                taken[f"{who} load"].append(load)
    assert all(torch.equal(blank[name], tensor) for name, tensor in held.items())
    middle = {name: statistics.median(values) for name, values in taken.items()}
    rows = []
    for what, peer in (("save", "FileSystemWriter"), ("load", "FileSystemReader")):
        # The disk's weather changes within minutes: each turn is compared with its own neighbour.
        pairs = zip(taken[f"ours {what}"], taken[f"torch {what}"], strict=True)
        slower = 100 * (statistics.median(ours / theirs for ours, theirs in pairs) - 1)
        target = SLOWER_PCT_MAX if what == "save" and len(held) <= 32 else None  # asked for of large tensors
        rows.append(Row(case, f"{what}, slower than torch's own", slower, "%", f"{peer}, in turns", target))
        rate = f"{peer}: {nbytes / 1e9 / middle[f'torch {what}']:.2f} GB/s"
        rows.append(
            Row(
                case,
                f"{what}, durable" if what == "save" else "load, proved",
                nbytes / 1e9 / middle[f"ours {what}"],
                "GB/s",
                rate,
            )
        )
    return rows


def memory(home: Path, quick: bool) -> list[Row]:
    """What a save and a load add to the memory of a process that holds the state, in processes of their own."""
    count = 8 if quick else 32
    peak = {}
    for who in ("torch", "ours"):
        for what in ("save", "load"):
            command = [sys.executable, "-m", "bench.dcp", "--peak", who, what, str(count), str(home / "peak")]
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            peak[who, what] = float(done.stdout)
        shutil.rmtree(home / "peak")
    case = titled(count, 32 * MIB)
    return [
        Row(case, f"memory that a {what} adds", peak["ours", what], "MB", f"torch's own: {peak['torch', what]:.0f} MB")
        for what in ("save", "load")
    ]


def added(who: str, what: str, count: int, path: str) -> float:
    """In a fresh process: by how much the largest memory grew, in MB."""
    warnings.simplefilter("ignore")
    held = state(count, 32 * MIB)
    small = {"w": torch.zeros(4)}
    warm = tempfile.mkdtemp()
    torch_dcp.save(small, checkpoint_id=warm)
    torch_dcp.load(small, checkpoint_id=warm)
    shutil.rmtree(warm)
    before = peak_kb()
    if what == "save":
        torch_dcp.save(held, storage_writer=Writer(path) if who == "ours" else torch_dcp.FileSystemWriter(path))
    else:
        torch_dcp.load(held, storage_reader=Reader(path) if who == "ours" else torch_dcp.FileSystemReader(path))
    return (peak_kb() - before) / 1e3


def peak_kb() -> int:
    """Not getrusage: its peak is inherited from the process that started this one."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith("VmHWM")))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--peak"]:
        print(added(sys.argv[2], sys.argv[3], int(sys.argv[4]), sys.argv[5]))
    else:
        sys.exit(main("dcp", measure))
