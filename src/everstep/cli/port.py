"""`everstep import`: a run made of another system's checkpoint, and what of it came over."""

from typing import Any

from everstep.cli import text
from everstep.cli.progress import progress
from everstep.errors import Misuse, StoreFailed
from everstep.foreign.arrive.arrive import Arrived, arrive
from everstep.foreign.arrive.wishes import wishes
from everstep.url import local_path

NOTES_MAX = 10


def bring(source: str, url: str, *, order: str | None, as_json: bool, **said: Any) -> None:
    """Import, and say what was imported and what is not in the source."""
    wanted = wishes(order=_groups(order) if order is not None else (), **said)
    path = local_path(url)
    with progress("importing") as tick:
        found = arrive(source, path, wanted, tick)
    told = described(path, found)
    if as_json:
        text.echo_json(told)
    else:
        _print(told)


def described(path: str, found: Arrived) -> dict[str, Any]:
    """Everything that `import` says, as JSON holds it."""
    return {
        "run": path,
        "source": found.checkpoint.path,
        "kind": found.checkpoint.kind,
        "step": found.step,
        "bytes": found.nbytes,
        "proved_bytes": found.proved,
        "imported": list(found.ledger.imported),
        "not_in_the_source": list(found.ledger.absent),
        "left_behind": list(found.ledger.left),
        "notes": list(found.checkpoint.notes),
    }


def _print(told: dict[str, Any]) -> None:
    proved = f"{text.size(told['proved_bytes'])} of the source had checksums, and they are right"
    text.echo(f"{told['run']}: base {told['step']}, {text.size(told['bytes'])}, of {told['kind']}; {proved}")
    for title, key in (
        ("imported", "imported"), ("not in the source", "not_in_the_source"), ("left behind", "left_behind"),
    ):  # fmt: skip
        for line in told[key]:
            text.echo(f"  {title:<18} {line}")
    for note in told["notes"][:NOTES_MAX]:
        text.echo(f"note: {note}")


def _groups(path: str) -> tuple[tuple[str, ...], ...]:
    """Names, one a line; a blank line begins the next group."""
    try:
        with open(path, encoding="utf-8") as file:
            lines = [line.strip() for line in file]
    except (OSError, UnicodeDecodeError) as failed:
        raise StoreFailed(f"--order {path}: cannot be read ({failed}).") from failed
    found: list[list[str]] = [[]]
    for line in lines:
        if line:
            found[-1].append(line)
        elif found[-1]:
            found.append([])
    if not found[0]:
        raise Misuse(f"--order {path}: is empty. It has one parameter's name a line.")
    return tuple(tuple(group) for group in found if group)
