"""The results of `bench.overhead` as tables for people: one of everstep, one of the others, and the targets missed."""

from collections.abc import Sequence
from typing import Any

OURS = {
    "overhead_pct": "overhead",
    "overhead_median_pct": "of the median step",
    "predicted_overhead_pct": "predicted",
    "stall_p99_ms": "p99 stall",
    "gpu_memory_pct": "GPU memory of live tensors",
    "gpu_active_pct": "and of those being copied",
    "machine_memory_gib": "host memory",
    "bytes_per_step": "a step",
    "lag_memory_max": "behind in memory, at most",
    "lag_disk_median": "behind on disk",
    "not_recorded": "not recorded",
}
THEIRS = {
    "every 1": "overhead at every step",
    "usable_interval": "usable every",
    "save_blocks_ms": "a save blocks",
    "save_adds_ms": "a save adds",
    "save_takes_s": "a save takes",
    "gpu_memory_pct": "GPU memory of live tensors",
    "gpu_active_pct": "and of those being copied",
    "machine_memory_gib": "host memory",
}

Rows = Sequence[dict[str, Any]]


def tables(rows: Rows) -> str:
    """Markdown."""
    cells: dict[str, dict[str, str]] = {}
    for row in rows:
        program, *subject = row["case"].split(", ")
        if len(subject) == 2 and subject[1] == "every 1" and row["metric"] == "overhead_pct":
            cells.setdefault(f"{program}, {subject[0]}", {})["every 1"] = figure(row)
        elif len(subject) == 1:
            cells.setdefault(row["case"], {})[row["metric"]] = figure(row)
    ours = {case: found for case, found in cells.items() if "overhead_pct" in found}
    theirs = {case: found for case, found in cells.items() if "usable_interval" in found}
    missed = [row for row in rows if row["target"] and not row["met"]]
    return "\n".join([
        "Overheads are against the same program without a checkpoint, in the blocks right before and after.", "",
        *table("everstep, a checkpoint of every step", OURS, ours), "",
        *table("others; usable: the shortest interval within 3.5 %", THEIRS, theirs), "",
        f"Targets: {sum(bool(row['met']) for row in rows if row['target'])} met, {len(missed)} missed.", "",
        *(f"- {row['case']}: {row['metric']} {figure(row)}, wanted {row['target']}" for row in missed), "",
    ])  # fmt: skip


def table(title: str, columns: dict[str, str], cases: dict[str, dict[str, str]]) -> list[str]:
    head = [title, *columns.values()]
    lines = [f"| {' | '.join(head)} |", f"|---|{'---:|' * len(columns)}"]
    lines += [f"| {case} | {' | '.join(found.get(name, '') for name in columns)} |" for case, found in cases.items()]
    return lines


def figure(row: dict[str, Any]) -> str:
    value = row["value"]
    return f"{value:,.0f} {row['unit']}" if abs(value) >= 100 or value == int(value) else f"{value:.2f} {row['unit']}"
