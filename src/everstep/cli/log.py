"""`everstep log`: one line per record."""

from collections.abc import Iterator
from typing import Any

from everstep.cli import text
from everstep.cli.look import Hyper, branch, fold, heads, hyper_of, opened
from everstep.codec.body import Head
from everstep.errors import Damaged
from everstep.log import frame
from everstep.log.inventory import Inventory
from everstep.log.reader import Located
from everstep.store import base
from everstep.store.disk import Disk

KINDS = {frame.UPDATE: "update", frame.REBASE: "rebase"}
ITEMS_MAX = 4
DIGEST_CHARS = 16


def log(url: str, first: int | None, last: int | None, *, as_json: bool) -> None:
    with opened(url) as (disk, path, epoch):
        found = branch(disk, path, epoch)
        lines = entries(disk, found, first, last)
        if as_json:
            text.echo_json({"epoch": found.epoch, "records": list(lines), "damages": [str(d) for d in found.damages]})
            return
        for entry in lines:
            text.echo(_line(entry))
    for damage in found.damages:
        text.echo(f"DAMAGED: {damage}")


def entries(disk: Disk, found: Inventory, first: int | None, last: int | None) -> Iterator[dict[str, Any]]:
    """What each record says, oldest first. Reading begins at a base, so that the first change shown is one."""
    steps = sorted(step for step in found.records if last is None or step <= last)
    known, start = _before(disk, found, first if first is not None else min(steps, default=0))
    for located, head in heads(disk, (found.records[step] for step in steps if step > start)):
        fresh = not known
        changes = fold(known, head)
        if first is None or located.step >= first:
            yield _entry(located, head, [c for c in changes if not fresh or c[2] == "lr"])


def _before(disk: Disk, found: Inventory, first: int) -> tuple[Hyper, int]:
    """The hyper-parameters of the newest readable base before `first`, and its step."""
    for entry in reversed(found.bases):
        if entry.step < first:
            try:
                return hyper_of(base.load(disk, found.manifest.writer, entry)), entry.step
            except Damaged:  # `verify` names it; here an older one, or none, will do
                continue
    return {}, first - 1


def _entry(located: Located, head: Head, changes: list[tuple[str, int, str, Any, Any]]) -> dict[str, Any]:
    return {
        "step": located.step,
        "epoch": located.frame.epoch,
        "kind": KINDS[located.frame.kind],
        "bytes": located.frame.nbytes,
        "updates": [
            {"optimizer": update.optimizer, "gradients": sum(b.name.startswith(f"gradient/{at}/") for b in head.blobs),
             "skipped": update.skipped, "scale": update.scale}
            for at, update in enumerate(head.updates)
        ],
        "hyper": [
            {"optimizer": key, "group": at, "name": name, "was": was, "now": now} for key, at, name, was, now in changes
        ],
        "context": sorted(head.context),
        "parameters_digest": head.parameters,
        "state_digest": head.state,
    }  # fmt: skip


def _line(entry: dict[str, Any]) -> str:
    parts = [f"{entry['step']:>8}  epoch {entry['epoch']}  {entry['kind']}  {text.size(entry['bytes']):>9}"]
    for update in entry["updates"]:
        scale = "" if update["scale"] is None else f" scale {update['scale']:g}"
        took = "skipped" if update["skipped"] else text.count(update["gradients"], "gradient")
        parts.append(f"{update['optimizer']}: {took}{scale}")
    moved: dict[tuple[str, str], list[str]] = {}
    for change in entry["hyper"]:
        one = f"{text.value(change['was'], 20)} -> {text.value(change['now'], 20)}"
        values = moved.setdefault((change["optimizer"], change["name"]), [])
        if one not in values:
            values.append(one)
    several = len({key for key, _ in moved}) > 1
    parts += [f"{f'{key}.' if several else ''}{name} {', '.join(values)}" for (key, name), values in moved.items()]
    if context := entry["context"]:
        more = f" and {len(context) - ITEMS_MAX} more" if len(context) > ITEMS_MAX else ""
        parts.append(f"context {', '.join(context[:ITEMS_MAX])}{more}")
    parts.append(f"digest {entry['parameters_digest'][:DIGEST_CHARS]}{' +state' if entry['state_digest'] else ''}")
    return "  ".join(parts)
