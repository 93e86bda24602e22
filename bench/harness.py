"""What every benchmark shares: rows with baselines and targets, a table, a JSON file, and a picture of the machine."""

import argparse
import json
import os
import platform
import statistics
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table


@dataclass(frozen=True)
class Row:
    """One number. `target` is the figure that was asked for before the run; None where none was."""

    case: str
    metric: str
    value: float
    unit: str
    baseline: str
    target: str | None = None

    @property
    def met(self) -> bool | None:
        if self.target is None:
            return None
        sign, _, number = self.target.partition(" ")
        return self.value >= float(number) if sign == ">=" else self.value <= float(number)


def main(name: str, measure: Callable[[bool], Iterable[Row]]) -> int:
    """Run a benchmark from the command line: `--quick` for a short one, `--json FILE` to keep it.

    What was measured is shown and kept even when the rest fails.
    """
    options = argparse.ArgumentParser(prog=f"python -m bench.{name}")
    options.add_argument("--quick", action="store_true")
    options.add_argument("--json", type=Path)
    chosen = options.parse_args()
    rows: list[Row] = []
    try:
        for row in measure(chosen.quick):
            rows.append(row)  # noqa: PERF402 each is kept as soon as it is there
    finally:
        show(name, rows)
        if chosen.json and rows:
            chosen.json.parent.mkdir(parents=True, exist_ok=True)
            chosen.json.write_text(json.dumps(document(name, rows, quick=chosen.quick), indent=1) + "\n")
    return 0


def document(name: str, rows: list[Row], *, quick: bool = False) -> dict[str, Any]:
    return {
        "bench": name,
        "quick": quick,
        "machine": machine(),
        "versions": versions(),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "rows": [{**asdict(row), "met": row.met} for row in rows],
    }


def show(name: str, rows: list[Row]) -> None:
    table = Table(title=f"bench.{name}")
    for column in ("case", "metric", "value", "unit", "baseline", "target", "met"):
        table.add_column(column, justify="right" if column == "value" else "left")
    for row in rows:
        met = {None: "", True: "yes", False: "NO"}[row.met]
        table.add_row(
            row.case,
            row.metric,
            f"{row.value:,.3g}" if abs(row.value) < 1000 else f"{row.value:,.0f}",
            row.unit,
            row.baseline,
            row.target or "",
            met,
        )
    Console(width=None if os.isatty(1) else 160).print(table)


def machine() -> dict[str, Any]:
    processor = next(
        (
            line.split(":")[1].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if line.startswith("model name")
        ),
        "",
    )
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "cpu": processor,
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(memory / 2**30),
        "gpu": gpu(),
        "kernel": platform.release(),
    }


def gpu() -> str:
    import torch

    return torch.cuda.get_device_name() if torch.cuda.is_available() else ""


def versions() -> dict[str, str]:
    import torch

    import everstep

    return {"everstep": everstep.__version__, "torch": str(torch.__version__), "python": platform.python_version()}


def seconds(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def in_turns(works: dict[str, Callable[[], object]], turns: int) -> dict[str, float]:
    """Median seconds of each, measured in turns so that all meet the same weather. The first turn warms up."""
    taken: dict[str, list[float]] = {name: [] for name in works}
    for turn in range(turns + 1):
        for name, work in works.items():
            spent = seconds(work)
            if turn:
                taken[name].append(spent)
    return {name: statistics.median(values) for name, values in taken.items()}
