"""Trains a small transformer, kills it again and again with SIGKILL, and shows that nothing was lost.

`make demo` runs it. It ends with a table, and with an error if the killed run differs from an uninterrupted one.
"""

import argparse
import random
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table

TRAIN = Path(__file__).with_name("train.py")
COST = Path(__file__).with_name("cost.py")
LIFE_SECONDS_MAX = 120.0


@dataclass
class Story:
    """What happened to the killed run."""

    lost: list[int] = field(default_factory=list)
    recovered_seconds: list[float] = field(default_factory=list)
    digest: str = ""


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--steps", type=int, default=120, help="at least 40")
    options.add_argument("--kills", type=int, default=6)
    options.add_argument("--seed", type=int, default=random.randrange(1 << 30))
    chosen = options.parse_args()
    console = Console()
    if chosen.steps < 40 or not 1 <= chosen.kills <= chosen.steps // 4:
        options.error("at least 40 steps, and at most one kill for every four of them")
    console.print(f"seed {chosen.seed}, {chosen.steps} steps, {chosen.kills} kills")
    home = Path(tempfile.mkdtemp(prefix="everstep-demo-"))
    try:
        columns = (TextColumn("{task.description:<42}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        with Progress(*columns, console=console) as progress:
            expected = uninterrupted(chosen.steps, progress)
            story = killed(home / "run", chosen.steps, chosen.kills, random.Random(chosen.seed), progress)
            cost = measured(home / "cost", progress)
        show(console, story, cost, expected)
        return 0 if story.digest == expected else 1
    finally:
        shutil.rmtree(home)


def uninterrupted(steps: int, progress: Progress) -> str:
    """The digest of the same training without everstep and without kills."""
    bar = progress.add_task("without everstep, never killed", total=steps)
    for words in watched(start(steps, None)):
        if words[0] == "step":
            progress.update(bar, completed=int(words[1]))
        if words[0] == "digest":
            return words[1]
    raise SystemExit("the uninterrupted run ended early")


def killed(run: Path, steps: int, kills: int, chance: random.Random, progress: Progress) -> Story:
    """Train to the end although somebody keeps killing the process."""
    story = Story()
    bar = progress.add_task("with everstep, killed 0 times", total=steps)
    marks = sorted(chance.sample(range(2, steps - 20), kills))  # not so late that a child could end before its kill
    done = 0
    while not story.digest:
        done = life(run, steps, marks, done, story, chance, progress, bar)
        progress.update(bar, description=f"with everstep, killed {len(story.lost) + (not story.digest)} times")
    return story


def life(
    run: Path,
    steps: int,
    marks: list[int],
    done: int,
    story: Story,
    chance: random.Random,
    progress: Progress,
    bar: TaskID,
) -> int:
    """One process, from start to end or to its death. Returns the last step it said it had committed."""
    child, doomed = start(steps, run), False
    for words in watched(child):
        if words[0] == "resumed":
            if done:
                story.lost.append(done - int(words[1]))
                story.recovered_seconds.append(float(words[2]))
            done = int(words[1])
        elif words[0] == "step":
            done = int(words[1])
            progress.update(bar, completed=done)
            if marks and done >= marks[0] and not doomed:
                marks.pop(0)
                doomed = True
                # any instant of the next step or two: in the data, forward, backward, optimizer, commit, write or sync
                threading.Timer(chance.uniform(0, 0.2), child.send_signal, [signal.SIGKILL]).start()
        elif words[0] == "digest":
            story.digest = words[1]
    return done


def measured(run: Path, progress: Progress) -> dict[str, float]:
    """The cost of a commit, by taking turns with and without in one process."""
    bar = progress.add_task("with and without, in turns", total=None)
    found: dict[str, float] = {}
    for words in watched(subprocess.Popen([sys.executable, str(COST), str(run)], stdout=subprocess.PIPE, text=True)):
        if words[0] == "turn":
            progress.update(bar, completed=int(words[1]), total=int(words[2]))
        else:
            found[words[0]] = float(words[1])
    return found


def start(steps: int, run: Path | None) -> subprocess.Popen[str]:
    command = [sys.executable, str(TRAIN), "--steps", str(steps)]
    return subprocess.Popen([*command, "--run", str(run)] if run else command, stdout=subprocess.PIPE, text=True)


def watched(child: subprocess.Popen[str]) -> Iterator[list[str]]:
    """What a child says, until it ends. A child that fails by itself ends the demo."""
    began = time.monotonic()
    assert child.stdout is not None
    for line in child.stdout:
        if line.endswith("\n"):  # a killed child's last words may be cut short
            yield line.split()
        if time.monotonic() - began > LIFE_SECONDS_MAX:
            child.kill()
            raise SystemExit(f"a training process took more than {LIFE_SECONDS_MAX:.0f} s")
    if child.wait() not in (0, -signal.SIGKILL):
        raise SystemExit(f"a training process failed with exit code {child.returncode}")


def show(console: Console, story: Story, cost: dict[str, float], expected: str) -> None:
    table = Table(title="a training run, killed", show_header=False)
    worst = max(story.recovered_seconds)
    rows = {
        "kills": f"{len(story.lost)}",
        "steps lost per kill": f"{', '.join(str(count) for count in story.lost)}",
        "time to recover (median / worst)": f"{statistics.median(story.recovered_seconds):.2f} s / {worst:.2f} s",
        "training step without / with everstep": f"{cost['plain_ms']:.1f} ms / {cost['with_ms']:.1f} ms",
        "slow-down, measured in turns": f"{cost['slowdown_pct']:+.1f} %",
        "written per step": f"{cost['bytes_per_step'] / 1e6:.2f} MB",
        "digest of the killed run": story.digest,
        "digest equal to an uninterrupted run": "yes" if story.digest == expected else "NO",
    }
    for name, value in rows.items():
        table.add_row(name, value)
    console.print(table)


if __name__ == "__main__":
    sys.exit(main())
