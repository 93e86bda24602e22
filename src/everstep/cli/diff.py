"""`everstep diff`: how far each tensor moved between two steps."""

import functools
import math
from typing import Any

import torch

from everstep.capture.tensors import on_host
from everstep.cli import text
from everstep.cli.progress import progress
from everstep.recover.restore import restore as restored

CHUNK = 1 << 20
"""Elements compared at once: their difference is taken in float64, and memory stays small."""


def diff(url: str, a: int, b: int, *, as_json: bool) -> None:
    with progress("comparing") as tick:
        one, two = restored(url, a).tensors, restored(url, b).tensors
        rows, both = [], [name for name in one if name in two]
        for at, name in enumerate(both):
            rows.append(compare(name, one[name], two[name]))
            tick(at + 1, len(both))
    rows.sort(key=lambda row: (-(row["l2"] if not math.isnan(row["l2"]) else math.inf), row["name"]))
    only = {"only_a": sorted(one.keys() - two.keys()), "only_b": sorted(two.keys() - one.keys())}
    found = {"a": a, "b": b, "tensors": rows, **only}
    if as_json:
        text.echo_json(found)
    else:
        _print(found)


def compare(name: str, one: torch.Tensor, two: torch.Tensor) -> dict[str, Any]:
    """Bits and elements that differ, and how far: L2 norm, largest, and L2 relative to the norm of the first."""
    if one.shape != two.shape or one.dtype != two.dtype:
        note = f"{one.dtype} {tuple(one.shape)} -> {two.dtype} {tuple(two.shape)}"
        return _row(name, one.numel(), one.numel(), 0, math.nan, math.nan, math.nan, note)
    left, right = on_host(one).reshape(-1), on_host(two).reshape(-1)
    elements = bits = 0
    squares = norm = largest = 0.0
    for at in range(0, left.numel(), CHUNK):
        x, y = left[at : at + CHUNK], right[at : at + CHUNK]
        apart = (x.view(torch.uint8) ^ y.view(torch.uint8)).reshape(len(x), -1)
        elements += int((apart != 0).any(1).sum())
        bits += int(_ones()[apart.to(torch.int64)].sum()) if elements else 0
        wide = torch.complex128 if x.is_complex() else torch.float64
        moved = (y.to(wide) - x.to(wide)).abs()
        squares += float((moved * moved).sum())
        norm += float((x.to(wide).abs() ** 2).sum())
        largest = max(largest, float(moved.max()))
    l2 = math.sqrt(squares)
    relative = l2 / math.sqrt(norm) if norm else (0.0 if l2 == 0 else math.inf)
    return _row(name, left.numel(), elements, bits, l2, largest, relative, None)


def _row(
    name: str, count: int, elements: int, bits: int, l2: float, largest: float, relative: float, note: str | None
) -> dict[str, Any]:
    return {
        "name": name,
        "elements": count,
        "elements_changed": elements,
        "bits_changed": bits,
        "l2": l2,
        "max_abs": largest,
        "relative": relative,
        "note": note,
    }


@functools.cache
def _ones() -> torch.Tensor:
    """How many bits are set in each byte."""
    return torch.tensor([byte.bit_count() for byte in range(256)], dtype=torch.int64)


def _numbers(row: dict[str, Any]) -> list[str]:
    return [f"{row['l2']:.6g}", f"{row['max_abs']:.6g}", f"{row['relative']:.3g}"]


def _print(found: dict[str, Any]) -> None:
    rows = [
        [r["name"], f"{r['elements_changed']}/{r['elements']}", str(r["bits_changed"]), *_numbers(r), r["note"] or ""]
        for r in found["tensors"]
    ]
    text.echo_table(["tensor", "changed", "bits", "l2", "max", "relative", "note"], rows, left="tensor note")
    for step, key in (("a", "only_a"), ("b", "only_b")):
        for name in found[key]:
            text.echo(f"  only at step {found[step]}: {name}")
