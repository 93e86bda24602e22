"""The table at the end, and the file for docs/BENCHMARKS.md."""

import json
import os
import subprocess
from dataclasses import asdict, dataclass
from datetime import UTC, datetime

from rich.console import Console
from rich.table import Table

from bench import harness


@dataclass(frozen=True, slots=True)
class Row:
    case: str
    metric: str
    value: float
    unit: str
    target: str
    met: bool
    baseline: str = ""


def show(console: Console, rows: list[Row]) -> None:
    table = Table("case", "metric", "value", "target", "met", title="everstep crash tests")
    last = ""
    for row in rows:
        value = f"{row.value:,} {row.unit}".strip()
        met = "yes" if row.met else "[bold red]NO[/]"
        table.add_row("" if row.case == last else row.case, row.metric, value, row.target, met)
        last = row.case
    console.print(table)


def save(path: str, rows: list[Row], seed: int, seconds: float) -> None:
    commit = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=False).stdout.strip()
    document = {
        "bench": "crash",
        "machine": harness.machine(),
        "versions": {**harness.versions(), "commit": commit[:12]},
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "seed": seed,
        "seconds": round(seconds, 1),
        "rows": [asdict(row) for row in rows],
    }
    os.makedirs(os.path.dirname(os.path.abspath(path)), exist_ok=True)
    with open(path, "w", encoding="utf-8") as file:
        json.dump(document, file, indent=1)
        file.write("\n")
