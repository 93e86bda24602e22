"""Draws the overheads of `bench.overhead` as one SVG: bars on a log scale, everstep's sources beside its peers.

python -m bench.plot bench/results/overhead.json docs/overhead.svg
"""

import json
import math
import sys
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

DECADES = (0.1, 1, 10, 100, 1000, 10000)
"""Per cent. What is below the first is drawn as a sliver and labelled with its value all the same."""
LEFT, RIGHT, TOP, ROW, GAP, FOOT = 236, 84, 66, 22, 34, 52
WIDTH = 860
TARGET = 1.0
STYLE = """
  .page { fill: #ffffff } .text { fill: #1f2328 } .dim { fill: #59636e } .grid { stroke: #d1d9e0 }
  .ours { fill: #2f6fde } .peer { fill: #9aa4af } .target { stroke: #1a7f37 } .goal { fill: #1a7f37 }
  .value { fill: #1f2328; stroke: #ffffff; stroke-width: 4px; paint-order: stroke }
  @media (prefers-color-scheme: dark) {
    .page { fill: #0d1117 } .text { fill: #e6edf3 } .dim { fill: #9198a1 } .grid { stroke: #30363d }
    .ours { fill: #6ea8ff } .peer { fill: #6b7580 } .target { stroke: #3fb950 } .goal { fill: #3fb950 }
    .value { fill: #e6edf3; stroke: #0d1117 }
  }"""


@dataclass(frozen=True, slots=True)
class Bar:
    title: str
    pct: float
    ours: bool


def drawing(result: dict[str, Any]) -> str:
    """The whole picture. It paints its own ground, so that it reads on any page."""
    groups = bars(result["rows"])
    height = TOP + sum(GAP + ROW * len(group) for group in groups.values()) + FOOT
    bottom = height - FOOT + 6
    body, values = [grid(bottom)], [target(bottom)]
    y = TOP
    for model, group in groups.items():
        body.append(f'<text class="text" x="16" y="{y + 18}" font-weight="600">{escape(model)}</text>')
        y += GAP - 6
        for bar in group:
            body.append(drawn(bar, y))
            values.append(valued(bar, y))
            y += ROW
        y += 6
    machine = result["machine"]["gpu"] or result["machine"]["cpu"]
    foot = f"{machine}, torch {result['versions']['torch']}, everstep {result['versions']['everstep']}"
    body.append(f'<text class="dim" x="16" y="{height - 12}" font-size="11">{escape(foot)}</text>')
    title = "Slow-down of a training step by a checkpoint of every step"
    return "\n".join([
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="system-ui, sans-serif" '
        f'font-size="13" role="img" aria-label="{title}">',
        f"<style>{STYLE}\n</style>",
        f'<rect class="page" width="{WIDTH}" height="{height}" rx="8"/>',
        f'<text class="text" x="16" y="28" font-size="16" font-weight="600">{title}</text>',
        '<text class="dim" x="16" y="47" font-size="12">per cent of a step without checkpoint, log scale; '
        "blue: everstep, grey: others</text>",
        *body,
        *values,
        "</svg>\n",
    ])  # fmt: skip


def bars(rows: list[dict[str, Any]]) -> dict[str, list[Bar]]:
    """Per program: everstep's sources, then the peers at every step. An eager one gives way to its compiled twin."""
    groups: dict[str, list[Bar]] = {}
    for row in rows:
        if row["metric"] != "overhead_pct":
            continue
        program, subject, *every = row["case"].split(", ")
        if every not in ([], ["every 1"]):
            continue
        groups.setdefault(program, []).append(Bar(subject, row["value"], ours=not every))
    twins = {program for program in groups if program.replace(" eager", " compiled") in groups.keys() - {program}}
    return {
        program: sorted(group, key=lambda bar: not bar.ours)
        for program, group in groups.items()
        if program not in twins
    }


def grid(bottom: int) -> str:
    lines = []
    for pct in DECADES:
        x = at(pct)
        lines.append(f'<line class="grid" x1="{x:.1f}" y1="{TOP}" x2="{x:.1f}" y2="{bottom}"/>')
        lines.append(
            f'<text class="dim" x="{x:.1f}" y="{bottom + 15}" font-size="11" text-anchor="middle">{pct:,g} %</text>'
        )
    return "\n".join(lines)


def target(bottom: int) -> str:
    x = at(TARGET)
    return (
        f'<line class="target" x1="{x:.1f}" y1="{TOP}" x2="{x:.1f}" y2="{bottom}" stroke-dasharray="4 3"/>'
        f'<text class="goal" x="{x:.1f}" y="{TOP - 5}" font-size="11" text-anchor="middle">target</text>'
    )


def drawn(bar: Bar, y: int) -> str:
    name, kind = (f"everstep, {bar.title}", "ours") if bar.ours else (bar.title, "peer")
    return (
        f'<text class="text" x="{LEFT - 10}" y="{y + 15}" text-anchor="end">{escape(name)}</text>'
        f'<rect class="{kind}" x="{LEFT}" y="{y + 3}" width="{end(bar) - LEFT:.1f}" height="{ROW - 7}" rx="2"/>'
    )


def valued(bar: Bar, y: int) -> str:
    """Beside the bar, over the lines."""
    return f'<text class="value" x="{end(bar) + 6:.1f}" y="{y + 15}" font-size="12">{figure(bar.pct)}</text>'


def end(bar: Bar) -> float:
    return max(at(bar.pct), LEFT + 2)


def at(pct: float) -> float:
    """Where a percentage stands; the scale's ends hold what is beyond them."""
    first, last = math.log10(DECADES[0]), math.log10(DECADES[-1])
    share = (math.log10(max(pct, DECADES[0])) - first) / (last - first)
    return LEFT + min(1.0, share) * (WIDTH - LEFT - RIGHT)


def figure(pct: float) -> str:
    return f"{pct:,.0f} %" if abs(pct) >= 100 else f"{pct:.1f} %" if abs(pct) >= 10 else f"{pct:.2f} %"


def main() -> int:
    if len(sys.argv) != 3:
        sys.stderr.write(__doc__ or "")
        return 2
    Path(sys.argv[2]).write_text(drawing(json.loads(Path(sys.argv[1]).read_text())))
    return 0


if __name__ == "__main__":
    sys.exit(main())
