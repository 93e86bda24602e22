"""How values are printed: escaped, aligned, in human units; or as JSON."""

from collections.abc import Sequence
from typing import Any

import click
import msgspec

from everstep.types import size as size


def clean(text: str, keep: str = "") -> str:
    """The text with everything that a terminal would obey, or could not show, written out."""
    return "".join(c if c.isprintable() or c in keep else c.encode("unicode_escape").decode() for c in text)


def spans(found: Sequence[Sequence[int]]) -> str:
    """Stretches of steps, as text."""
    return ", ".join(f"{a}" if a == b else f"{a} to {b}" for a, b in found) or "none"


def count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def echo(text: str) -> None:
    """One line, or several that belong together."""
    click.echo(clean(text, keep="\n"))


def echo_json(value: Any) -> None:
    click.echo(msgspec.json.format(msgspec.json.encode(value), indent=2))


def echo_table(head: Sequence[str], rows: Sequence[Sequence[str]], *, left: str) -> None:
    """Columns as wide as they must be; `left` names the columns that are text, all others are numbers."""
    table = [[clean(cell) for cell in row] for row in (head, *rows)]
    widths = [max(len(row[at]) for row in table) for at in range(len(head))]
    texts = left.split()
    for row in table:
        cells = [
            cell.ljust(width) if name in texts else cell.rjust(width)
            for name, cell, width in zip(head, row, widths, strict=True)
        ]
        click.echo(("  " + "  ".join(cells)).rstrip())


def value(tree: Any, chars_max: int = 60) -> str:
    """A recorded value in one short line."""
    text = _value(tree, 0)
    return text if len(text) <= chars_max else f"{text[: chars_max - 3]}..."


def _value(tree: Any, depth: int) -> str:
    if depth > 8:
        return ".."
    if isinstance(tree, list):
        return f"[{', '.join(_value(item, depth + 1) for item in tree[:16])}{', ..' if len(tree) > 16 else ''}]"
    if not isinstance(tree, dict):
        return "none" if tree is None else f"{tree:.6g}" if isinstance(tree, float) else repr(tree)
    if "$" not in tree:
        pairs = [f"{key}: {_value(item, depth + 1)}" for key, item in list(tree.items())[:16]]
        return f"{{{', '.join(pairs)}{', ..' if len(tree) > 16 else ''}}}"
    form, inner = tree.get("$"), tree.get("v")
    if form in ("tensor", "ndarray", "bytes"):
        return f"<{form}>"
    if form == "tuple" and isinstance(inner, list):
        return f"({_value(inner, depth + 1)[1:-1]})"
    return str(inner) if form in ("float", "int") else _value(inner, depth + 1)
