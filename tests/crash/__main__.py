"""`python -m tests.crash`: simulated crash states, SIGKILL, power cuts, and bugs that must be caught. Fails on any."""

import os
import sys

os.environ["OMP_NUM_THREADS"] = "1"  # before torch is imported anywhere: children are forked and must find no threads

import logging
import time

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from tests.crash.bugs import BUGS
from tests.crash.parts import FULL, PARTS, QUICK, Sizes
from tests.crash.power import CannotCut
from tests.crash.report import Row, save, show
from tests.crash.scenarios import SCENARIOS


@click.command()
@click.option("--quick", is_flag=True, help="A minute instead of a quarter of an hour.")
@click.option("--seed", type=int, default=None, help="Repeat a run; random and printed by default.")
@click.option("--only", type=click.Choice(list(PARTS)), default=None, help="One part instead of all.")
@click.option("--workers", type=int, default=2, help="Processes at a time.")
@click.option("--json", "path", type=click.Path(dir_okay=False), default=None, help="Write the rows to this file.")
def main(quick: bool, seed: int | None, only: str | None, workers: int, path: str | None) -> None:
    """Crash everstep in every way we know, and check what is left."""
    console = Console(width=120)
    logging.getLogger("everstep").setLevel(logging.CRITICAL)  # what the keeper says of disks that fail on purpose
    seed = int.from_bytes(os.urandom(3), "big") if seed is None else seed
    sizes = QUICK if quick else FULL
    console.print(f"seed {seed}")
    rows: list[Row] = []
    wrongs: list[str] = []
    began = time.perf_counter()
    columns = (TextColumn("{task.description:<6}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console) as progress:
        for name in [only] if only else PARTS:
            task = progress.add_task(name, total=_total(name, sizes))
            try:
                found, wrong = PARTS[name](seed, sizes, workers, lambda count, task=task: progress.advance(task, count))
            except CannotCut as cannot:
                progress.stop()
                console.print(f"[bold red]no power cut was made:[/] {cannot} Run as root, with loop devices.")
                sys.exit(2)
            rows += found
            wrongs += [f"{name}: {text}" for text in wrong]
    seconds = time.perf_counter() - began
    if only is None and not quick:
        rows.append(Row("all of it", "wall clock", round(seconds), "s", "< 900", seconds < 900))
    show(console, rows)
    for text in wrongs[:20]:
        console.print(text, markup=False)
    console.print(f"seed {seed}, {seconds:.0f} s, {len(wrongs)} findings")
    if path is not None:
        save(path, rows, seed, seconds)
    sys.exit(1 if wrongs or not all(row.met for row in rows if row.metric not in ("rate", "wall clock")) else 0)


def _total(name: str, sizes: Sizes) -> int:
    totals = {"bugs": len(BUGS) + len(SCENARIOS), "kill": sizes.kills, "lives": sizes.lives, "power": sizes.cuts}
    return totals.get(name, sizes.states + sizes.lossy + sizes.faulty)


if __name__ == "__main__":
    main()
