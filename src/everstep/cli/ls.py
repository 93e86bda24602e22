"""`everstep ls`: what a run holds, without reading a single gradient."""

from typing import Any

from everstep.cli import text
from everstep.cli.look import branch, opened
from everstep.log import lease
from everstep.log.inventory import Inventory, acknowledged, survey
from everstep.log.reader import Scanned
from everstep.recover.cohort import inventories, lasting, together
from everstep.store import cohort as cohorts
from everstep.store import names, prune
from everstep.store.disk import Disk
from everstep.store.manifest import Segment, Term


def ls(url: str, *, as_json: bool) -> None:
    with opened(url) as (disk, path, epoch):
        found = branch(disk, path, epoch)
        past = [] if epoch is not None else [at for at in prune.branches(found.manifest) if at != found.epoch]
        older = [survey(disk, path, epoch=at) for at in past]
        listing = describe(disk, found, older, lease.holder(disk, found.manifest.writer))
        listing["cohort"] = None if epoch is not None else _cohort(disk, path)
    if as_json:
        text.echo_json(listing)
    else:
        _print(path, listing)


def _cohort(disk: Disk, path: str) -> dict[str, Any] | None:
    """The writers that train together, and what they hold together; None for a run of one writer."""
    known = cohorts.load_all(disk)
    if not known:
        return None
    newest = cohorts.tips(disk, known)
    epochs, held = lasting(disk, path) or (newest, inventories(disk, path, newest) or [])
    return {
        "number": known[0].number,
        "writers": len(epochs),
        "epochs": list(epochs),
        "begun": epochs != newest,
        "steps": together(held),
        "acknowledged": cohorts.newest([inventory.promised for inventory in held]),
    }


def describe(disk: Disk, found: Inventory, older: list[Inventory], holder: str | None) -> dict[str, Any]:
    """Everything that `ls` says, as JSON holds it."""
    manifest, limits = found.manifest, dict(prune.lineage(found.manifest, found.epoch))
    segments = {
        (entry.epoch, entry.sequence): (entry, scanned) for inv in (*older, found) for entry, scanned in inv.segments
    }
    damages = {str(damage): None for inv in (found, *older) for damage in inv.damages}
    return {
        "run": manifest.run,
        "created": found.identity.created,
        "state": manifest.state,
        "live": holder is not None,
        "owner": holder,
        "epoch": found.epoch,
        "acknowledged": found.acknowledged,
        "newest": found.newest,
        "steps": found.spans(),
        "bytes": sum(_bytes(*held) for held in segments.values()) + sum(b.nbytes for b in manifest.bases),
        "branches": [_branch(found, current=True), *(_branch(inv, current=False) for inv in older)],
        "epochs": [_term(disk, found, term, limits) for term in manifest.terms if term.from_step is not None],
        "bases": [
            {"step": b.step, "epoch": b.epoch, "bytes": b.nbytes, "on_branch": b in found.bases}
            for b in sorted(manifest.bases, key=lambda b: (b.epoch, b.step))
        ],
        "segments": [_segment(manifest.writer, *segments[key]) for key in sorted(segments)],
        "damages": list(damages),
    }  # fmt: skip


def _branch(found: Inventory, *, current: bool) -> dict[str, Any]:
    return {"epoch": found.epoch, "current": current, "steps": found.spans(), "acknowledged": found.acknowledged}


def _term(disk: Disk, found: Inventory, term: Term, limits: dict[int, int | None]) -> dict[str, Any]:
    return {
        "epoch": term.epoch,
        "parent": term.parent,
        "from_step": term.from_step,
        "opened": term.opened,
        "host": term.host,
        "pid": term.pid,
        "acknowledged": acknowledged(disk, found.manifest, term.epoch),
        "on_branch": term.epoch in limits,
    }


def _segment(rank: int, entry: Segment, scanned: Scanned) -> dict[str, Any]:
    last = scanned.records[-1].step if scanned.records else None
    return {
        "file": names.segment(rank, entry.epoch, entry.sequence),
        "epoch": entry.epoch,
        "sequence": entry.sequence,
        "first": scanned.records[0].step if scanned.records else None,
        "last": last,
        "records": len(scanned.records),
        "bytes": _bytes(entry, scanned),
        "tail_bytes": scanned.tail_bytes,
        "state": _state(entry, scanned),
    }


def _state(entry: Segment, scanned: Scanned) -> str:
    """Sealed: ends where the manifest says. Cut: the file goes on, the run does not. Open: a writer may add to it."""
    if scanned.damage is not None:
        return "damaged"
    return "open" if entry.nbytes is None else "cut" if scanned.tail_bytes else "sealed"


def _bytes(entry: Segment, scanned: Scanned) -> int:
    return scanned.end if entry.nbytes is None else entry.nbytes


def _print(path: str, listing: dict[str, Any]) -> None:
    live = f"live, held by {listing['owner']}" if listing["live"] else "not live"
    text.echo(f"{path}: run {listing['run'][:8]}, begun {listing['created']}, {text.size(listing['bytes'])}, {live}")
    if (cohort := listing["cohort"]) is not None:
        text.echo(
            f"{text.count(cohort['writers'], 'writer')} {_trained(cohort)}: restorable {text.spans(cohort['steps'])}; "
            f"acknowledged {cohort['acknowledged']}. Writer 0 alone:"
        )
    text.echo(f"restorable: {text.spans(listing['steps'])}; acknowledged: {listing['acknowledged']}")
    for older in listing["branches"][1:]:
        text.echo(
            f"older branch #{older['epoch']}: {text.spans(older['steps'])}; acknowledged: {older['acknowledged']}"
        )
    head = ["epoch", "continues", "after", "acknowledged", "opened", "by"]
    rows = [
        [f"{t['epoch']}{'' if t['on_branch'] else ' (older branch)'}", "-" if t["parent"] is None else str(t["parent"]),
         str(t["from_step"]), str(t["acknowledged"]), t["opened"], f"process {t['pid']} on {t['host']}"]
        for t in listing["epochs"]
    ]  # fmt: skip
    text.echo(f"\n{text.count(len(rows), 'epoch')}")
    text.echo_table(head, rows, left="epoch opened by")
    text.echo(f"\n{text.count(len(listing['bases']), 'base')}")
    rows = [[str(b["step"]), str(b["epoch"]), text.size(b["bytes"])] for b in listing["bases"]]
    text.echo_table(["step", "epoch", "size"], rows, left="")
    text.echo(f"\n{text.count(len(listing['segments']), 'segment')}")
    rows = [_row(segment) for segment in listing["segments"]]
    text.echo_table(["epoch", "sequence", "steps", "records", "size", "state"], rows, left="state")
    for damage in listing["damages"]:
        text.echo(f"\nDAMAGED: {damage}")


def _trained(cohort: dict[str, Any]) -> str:
    if cohort["begun"]:
        return f"trained together (cohort {cohort['number']} goes on from them and holds nothing yet)"
    return f"train together (cohort {cohort['number']})"


def _row(segment: dict[str, Any]) -> list[str]:
    steps = "none" if segment["first"] is None else f"{segment['first']} to {segment['last']}"
    tail = f", {segment['tail_bytes']} bytes beyond its end" if segment["tail_bytes"] else ""
    numbers = [
        str(segment["epoch"]),
        str(segment["sequence"]),
        steps,
        str(segment["records"]),
        text.size(segment["bytes"]),
    ]
    return [*numbers, segment["state"] + tail]
