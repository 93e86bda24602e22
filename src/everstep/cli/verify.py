"""`everstep verify`: what is good and what is not."""

from typing import TYPE_CHECKING, Any

from everstep.cli import text
from everstep.cli.look import opened
from everstep.cli.progress import progress
from everstep.log.inventory import Inventory
from everstep.recover.verify import Report
from everstep.recover.verify import verify_all as prove
from everstep.store.disk import Disk

if TYPE_CHECKING:  # it imports torch
    from everstep.recover.rehearse import Leg


def verify(url: str, *, replay: bool, as_json: bool) -> bool:
    """Whether nothing is damaged."""
    with opened(url) as (disk, path, epoch):
        with progress("reading") as tick:
            report = prove(disk, path, tick=tick)
        if epoch is not None:  # the files are one: all were read, and this branch is the one to speak of
            report.branches = [b for b in report.branches if b.inventory.epoch == epoch] or report.branches
        legs = _replayed(disk, [branch.inventory for branch in report.branches]) if replay else None
    good = not report.damages and not any(leg["failed"] for leg in legs or [])
    found = describe(report, legs, good=good)
    if as_json:
        text.echo_json(found)
    else:
        _print(path, found)
    return good


def describe(report: Report, legs: list[dict[str, Any]] | None, *, good: bool) -> dict[str, Any]:
    """Everything that `verify` says, as JSON holds it."""
    return {
        "good": good,
        "segments": report.segments,
        "records": report.records,
        "bases": report.bases,
        "tensors": report.tensors,
        "bytes": report.nbytes,
        "branches": [
            {
                "writer": branch.inventory.manifest.writer,
                "epoch": branch.inventory.epoch,
                "current": branch.current,
                "steps": branch.spans,
                "acknowledged": branch.inventory.acknowledged,
            }
            for branch in report.branches
        ],
        "damages": [{"kind": d.kind, "file": d.path, "step": d.step, "what": d.what} for d in report.damages],
        "notes": report.notes,
        "replay": legs,
    }


def _replayed(disk: Disk, inventories: list[Inventory]) -> list[dict[str, Any]]:
    from everstep.recover.rehearse import legs, rehearse

    known: set[Any] = set()
    found = [(inventory, legs(inventory, known)) for inventory in inventories]
    total = 2 * sum(
        inventory.records[step].frame.nbytes
        for inventory, stretch in found for entry, last, _ in stretch for step in range(entry.step + 1, last + 1)
    )  # fmt: skip
    at = 0
    with progress("replaying") as tick:

        def done(count: int) -> None:
            nonlocal at
            at += count
            tick(at, total)

        return [_said(leg) for inventory, stretch in found for leg in rehearse(disk, inventory, stretch, done)]


def _said(leg: "Leg") -> dict[str, Any]:
    return {
        "epoch": leg.epoch,
        "base": leg.base,
        "last": leg.last,
        "to_base": leg.to_base,
        "records": leg.records,
        "native_updates": leg.native_updates,
        "native": leg.natively,
        "torch": leg.by_torch,
        "agree": leg.agree,
        "not_replayed": leg.skipped,
        "failed": leg.failed,
    }


def _print(path: str, found: dict[str, Any]) -> None:
    read = f"{path}: read {text.size(found['bytes'])}: {text.count(found['segments'], 'segment')}"
    bases = f"{text.count(found['bases'], 'base')} with {text.count(found['tensors'], 'good tensor')}"
    text.echo(f"{read}, {text.count(found['records'], 'good record')}, {bases}")
    several = any(branch["writer"] for branch in found["branches"])
    for branch in found["branches"]:
        name = "current branch" if branch["current"] else f"older branch #{branch['epoch']}"
        writer = f"writer {branch['writer']}, " if several else ""
        text.echo(f"{writer}{name}: proved {text.spans(branch['steps'])}; acknowledged {branch['acknowledged']}")
    for note in found["notes"]:
        text.echo(f"note: {note}")
    for leg in found["replay"] or []:
        text.echo(_leg(leg))
    skipped = sum(leg["not_replayed"] is not None for leg in found["replay"] or [])
    if skipped:
        text.echo(f"not replayed: {skipped} of {len(found['replay'])} stretches")
    for damage in found["damages"]:
        text.echo(f"DAMAGED: {damage['what']}")
    text.echo("good" if found["good"] else "NOT GOOD")


def _leg(leg: dict[str, Any]) -> str:
    end = f"base {leg['last']}" if leg["to_base"] else f"step {leg['last']}"
    begin = f"replay base {leg['base']} to {end} ({text.count(leg['records'], 'record')}, epoch {leg['epoch']}): "
    if leg["not_replayed"]:
        return f"{begin}NOT REPLAYED: {leg['not_replayed']}"
    by_torch = "torch's optimizer as recorded" if leg["torch"] is None else f"torch's optimizer DIFFERS: {leg['torch']}"
    if not leg["native_updates"]:
        return f"{begin}{by_torch}; no native rule"
    native = "native rules as recorded" if leg["native"] is None else f"native rules DIFFER: {leg['native']}"
    return f"{begin}{native}; {by_torch}; the two {'agree' if leg['agree'] else 'DISAGREE'}"
