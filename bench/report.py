"""Writes docs/BENCHMARKS.md from the committed results, so that no number in it was typed by hand.

python -m bench.report          writes it
python -m bench.report --check  fails if it is not what the results say
"""

import json
import sys
from pathlib import Path
from typing import Any

from bench.overhead.page import tables

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "bench" / "results"
PAGE = ROOT / "docs" / "BENCHMARKS.md"
HEAD = """# Benchmarks

Generated from `bench/results/` by `python -m bench.report`; no number here was typed by hand. Each row names its
baseline, measured in the same run. `target` is what was asked for before the run; a target that was missed stays in
the table.
"""


def page() -> str:
    sections = [section(json.loads(path.read_text()), path.name) for path in sorted(RESULTS.glob("*.json"))]
    return "\n".join([HEAD, *sections])


def section(result: dict[str, Any], name: str) -> str:
    machine, versions = result["machine"], result["versions"]
    where = f"{machine['cpu']}, {machine['cores']} cores, {machine['memory_gib']} GiB"
    where += f", {machine['gpu']}" if machine.get("gpu") else ""
    where += f" at a fixed {machine['gpu_clock_mhz']} MHz" if machine.get("gpu_clock_mhz") else ""
    what = ", ".join(f"{key} {value}" for key, value in versions.items())
    lines = [f"## {Path(name).stem}", "", f"`bench/results/{name}`, {result['date'][:10]}; {where}; {what}", ""]
    if result["bench"] == "overhead":
        return "\n".join([*lines, f"![overhead]({Path(name).stem}.svg)", "", tables(result["rows"])])
    lines += [
        "| case | metric | value | baseline | target | met |",
        "|---|---|---:|---|---|---|",
    ]
    for row in result["rows"]:
        met = {None: "", True: "yes", False: "**no**"}[row["met"] if row["target"] else None]
        cells = (
            row["case"],
            row["metric"],
            f"{number(row['value'])} {row['unit']}",
            row["baseline"],
            row["target"] or "",
            met,
        )
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join([*lines, ""])


def number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 or value == int(value) else f"{value:.3g}"


def main() -> int:
    if "--check" in sys.argv[1:]:
        return 0 if PAGE.exists() and PAGE.read_text() == page() else 1
    PAGE.write_text(page())
    return 0


if __name__ == "__main__":
    sys.exit(main())
