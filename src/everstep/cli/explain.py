"""`everstep explain`: what a resume onto another layout would read, before any device is taken."""

import re
import runpy
import statistics
from collections.abc import Mapping
from typing import Any

import click

from everstep.cli import text
from everstep.cli.look import opened
from everstep.errors import Misdescribed
from everstep.layout.boxes import Shape
from everstep.layout.language import Replicate, Shard
from everstep.layout.mesh import Mesh
from everstep.layout.spec import Rule, Spec
from everstep.layout.splits import Chunk
from everstep.recover.explain import Explained, Reading, explain, shapes, writers

SHORT = re.compile(r"(single|ddp|fsdp)(?::(\d{1,6}))?", re.ASCII)
LISTED_MAX = 16


def say(url: str, onto: str, step: int | None, *, as_json: bool) -> bool:
    """Whether everything that the layout wants is there."""
    with opened(url) as (disk, path, epoch):
        if epoch is not None:
            raise Misdescribed(f"{url}: explain looks at what all writers hold; leave out '#{epoch}'.")
        reached, parts = writers(disk, path, step)
    spec, names = layout(onto, shapes(parts))
    found = explain(reached, parts, spec, names)
    good = not any(reading.absent for reading in found.readings)
    if as_json:
        text.echo_json(described(found))
    else:
        _print(url, onto, found)
    return good


def layout(onto: str, known: Mapping[str, Shape]) -> tuple[Spec, Mapping[str, Shape]]:
    """`single`, `ddp:N`, `fsdp:N`, or a Python file of the user's that defines `spec` (and `names`, if they differ)."""
    short = SHORT.fullmatch(onto)
    if short is not None:
        count = int(short[2] or 1)
        word = Shard("dp", 0, Chunk()) if short[1] == "fsdp" else Replicate("dp")
        scalars = [re.escape(name) for name, shape in known.items() if not shape]
        rules = (Rule("|".join(scalars), (Replicate("dp"),)),) if scalars else ()
        return Spec(Mesh((("dp", count),)), (*rules, Rule(".*", (word,)))), known
    try:
        said = runpy.run_path(onto)
    except OSError as bad:
        raise click.BadParameter(
            f"{onto!r} is none of single, ddp:N, fsdp:N, and no file ({bad.strerror}).", param_hint="--onto"
        ) from bad
    spec = said.get("spec")
    if not isinstance(spec, Spec):
        raise Misdescribed(f"{onto}: defines no `spec` (an everstep.layout.spec.Spec).")
    return spec, said.get("names", known)


def described(found: Explained) -> dict[str, Any]:
    return {
        "step": found.step,
        "writers": [
            {"writer": w.rank, "base": w.base_step, "base_bytes": w.base_bytes, "records": w.records,
             "record_bytes": w.record_bytes}
            for w in found.writers
        ],
        "ranks": [
            {"rank": r.rank, "wanted_bytes": r.wanted_bytes, "read_bytes": r.read_bytes, "writers": list(r.writers),
             "amplification": round(r.amplification, 3), "peak_bytes": r.peak_bytes, "absent": list(r.absent)}
            for r in found.readings
        ],
        "notes": list(found.notes),
    }  # fmt: skip


def _print(url: str, onto: str, found: Explained) -> None:
    held = sum(writer.nbytes for writer in found.writers)
    text.echo(f"{url}: step {found.step} of {text.count(len(found.writers), 'writer')}, {text.size(held)}, onto {onto}")
    rows = [_row(reading) for reading in found.readings[:LISTED_MAX]]
    text.echo_table(["rank", "wants", "reads", "times", "peak", "from writers"], rows, left="")
    if len(found.readings) > LISTED_MAX:
        reads = [reading.read_bytes for reading in found.readings]
        middle = int(statistics.median(reads))
        text.echo(f"  ... {len(reads)} ranks in all; median {text.size(middle)}, most {text.size(max(reads))}")
    for note in found.notes:
        text.echo(f"note: {note}")
    for reading in found.readings:
        if reading.absent:
            names = ", ".join(reading.absent[:5])
            text.echo(f"CANNOT BE RESTORED on rank {reading.rank}: no writer holds all of {names}")
            break
    else:
        text.echo("everything is there")


def _row(reading: Reading) -> list[str]:
    first = ", ".join(map(str, reading.writers[:6])) + (", ..." if len(reading.writers) > 6 else "")
    return [
        str(reading.rank), text.size(reading.wanted_bytes), text.size(reading.read_bytes),
        f"{reading.amplification:.2f}", text.size(reading.peak_bytes), first,
    ]  # fmt: skip
