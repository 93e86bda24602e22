"""`everstep prune`: what goes, how many bytes that frees, and nothing that was asked to stay."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import click
import msgspec

from everstep.cli import text
from everstep.cli.look import opened
from everstep.cli.progress import waiting
from everstep.errors import Damaged, Misuse, StepNotHeld
from everstep.log import frame, lease
from everstep.log.inventory import Inventory, survey
from everstep.recover import choose
from everstep.recover.sound import base_faults
from everstep.store import cohort as cohorts
from everstep.store import keep, names
from everstep.store import prune as store
from everstep.store.disk import Disk, LocalDisk
from everstep.store.keep import Wishes
from everstep.store.manifest import BaseEntry, Manifest, Segment


def prune(url: str, specs: Sequence[str], *, dry_run: bool, as_json: bool) -> None:
    wishes = parse(specs)
    with opened(url) as (disk, path, epoch):
        if epoch is not None:
            raise Misuse(f"{url}: prune works on a whole run; leave out '#{epoch}'.")
        if cohorts.load_all(disk):
            raise Misuse(
                f"{path}: several writers hold this run together, and prune does not know yet what all of them need. "
                "Settings.retain_bytes_max bounds each."
            )
        sound = Sound(disk)
        with waiting("looking"):
            found = _survey(disk, path)
            goes = describe(disk, found, _plan(found, wishes, sound), sound)
        if not dry_run:
            goes["freed_bytes"] += _prune(disk, path, found, wishes, sound)
    goes["dry_run"] = dry_run
    if as_json:
        text.echo_json(goes)
    else:
        _print(goes)


def parse(specs: Sequence[str]) -> Wishes:
    """What the --keep options ask for, all together."""
    wanted: dict[str, Any] = {}
    for spec in specs:
        name, mark, number = spec.partition(":")
        counted = mark and number.isascii() and number.isdigit() and int(number) >= 1
        if name in ("last", "bases", "every") and counted:
            known = wanted.get(name)
            wanted[name] = int(number) if known is None else (min if name == "every" else max)(known, int(number))
        elif spec == "branches":
            wanted["branches"] = True
        else:
            raise click.BadParameter(
                f"{spec!r} is none of last:N, bases:N, every:N (N at least 1), branches.", param_hint="--keep"
            )
    return Wishes(**wanted)


class Sound:
    """Whether a base is what was written, every byte of it; asked once per base."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._known: dict[BaseEntry, list[str]] = {}
        self.rank = 0

    def __call__(self, entry: BaseEntry) -> bool:
        if entry not in self._known:
            self._known[entry] = base_faults(self._disk, self.rank, entry)
        return not self._known[entry]

    @property
    def faults(self) -> list[str]:
        return [fault for faults in self._known.values() for fault in faults]


def _survey(disk: Disk, path: str) -> Inventory:
    """What the run holds; an error when that is nothing, or less than was acknowledged."""
    found = survey(disk, path)
    if found.damages:
        raise Damaged(
            f"{found.damages[0]} Nothing was pruned: what would go may be the last good copy.", intact=found.newest
        )
    if not choose.routes(found):
        raise StepNotHeld(f"{path}: the run holds no step yet; there is nothing to prune.")
    return found


def _plan(found: Inventory, wishes: Wishes, sound: Sound) -> Manifest:
    sound.rank = found.manifest.writer
    planned = keep.plan(found.manifest, wishes, found.newest, sound=sound, cuts=_cuts(found))
    left = _left(found, planned)
    if left.newest != found.newest or not any(sound(entry) for entry in left.bases):
        lost = f"step {found.newest} could not be restored from what would be left"
        raise Damaged(f"nothing was pruned: {lost}. 'everstep verify' names the damage.", intact=found.newest)
    return planned


def _left(found: Inventory, planned: Manifest) -> Inventory:
    """The inventory as it will be."""
    kept = {names.segment(planned.writer, entry.epoch, entry.sequence) for entry in planned.segments}
    records = {step: record for step, record in found.records.items() if record.path in kept}
    return Inventory(found.identity, planned, found.epoch, found.acknowledged, store.on_branch(planned), records)


def _cuts(found: Inventory) -> dict[tuple[int, int], Segment]:
    """Where the current branch leaves a segment in its middle: what follows belongs to a branch that goes."""
    limits, cuts = dict(store.lineage(found.manifest)), {}
    for entry, scanned in found.segments:
        limit = limits[entry.epoch]
        ours = [record for record in scanned.records if limit is None or record.step <= limit]
        if ours and len(ours) < len(scanned.records):
            end = ours[-1].offset - frame.FRAME.size + ours[-1].frame.nbytes
            cuts[entry.epoch, entry.sequence] = msgspec.structs.replace(entry, nbytes=end, last_step=ours[-1].step)
    return cuts


def _prune(disk: LocalDisk, path: str, seen: Inventory, wishes: Wishes, sound: Sound) -> int:
    """Do it, as the run's owner. Returns the bytes of litter that went as well.

    The epoch claimed here never opens for records: its term is left out of what is published, so the next owner
    continues the branch that was there before.
    """
    opened_at = datetime.now(UTC).isoformat(timespec="seconds")
    held = lease.take(disk, seen.identity.run, seen.manifest.writer, opened=opened_at, take_over=False)
    try:
        found = _survey(disk, path)  # again: only now can nobody else change it
        planned = _plan(found, wishes, sound)
        acknowledged = max(found.acknowledged, planned.acknowledged)
        store.apply(disk, held.book, lambda _: msgspec.structs.replace(planned, acknowledged=acknowledged))
        litter = {
            name: _size(disk, f"{names.writer(sound.rank)}/{name}") for name in disk.names(names.writer(sound.rank))
        }
        return sum(litter[name] for name in lease.sweep(disk, held.book))
    finally:
        held.release()


def describe(disk: Disk, found: Inventory, planned: Manifest, sound: Sound) -> dict[str, Any]:
    """Everything that `prune` says, as JSON holds it."""
    now, files = found.manifest, sorted(store.files(found.manifest) - store.files(planned))
    kept = {(entry.epoch, entry.sequence) for entry in planned.segments}
    sizes = {name: _size(disk, name) for name in files}
    settled = {term.epoch for term in now.terms if term.from_step is not None}
    return {
        "run": now.run,
        "bases": [{"step": b.step, "epoch": b.epoch, "bytes": b.nbytes} for b in now.bases if b not in planned.bases],
        "segments": [
            {"epoch": s.epoch, "sequence": s.sequence, "after_step": s.after_step, "last_step": s.last_step}
            for s in now.segments if (s.epoch, s.sequence) not in kept
        ],
        "epochs": sorted(settled - {term.epoch for term in planned.terms}),
        "files": [{"file": name, "bytes": count} for name, count in sizes.items()],
        "freed_bytes": sum(sizes.values()),
        "restorable_before": found.spans(),
        "restorable_after": _left(found, planned).spans(),
        "branches_after": store.branches(planned),
        "notes": sound.faults,
    }  # fmt: skip


def _size(disk: Disk, path: str) -> int:
    try:
        source = disk.source(path)
    except OSError:
        return 0
    try:
        return source.size
    finally:
        source.close()


def _print(goes: dict[str, Any]) -> None:
    verb = "would go" if goes["dry_run"] else "gone"
    for base in goes["bases"]:
        text.echo(f"{verb}: base {base['step']} of epoch {base['epoch']}, {text.size(base['bytes'])}")
    for segment in goes["segments"]:
        last = "its end" if segment["last_step"] is None else segment["last_step"]
        steps = f"steps {segment['after_step'] + 1} to {last}"
        text.echo(f"{verb}: segment {segment['sequence']} of epoch {segment['epoch']}, {steps}")
    for note in goes["notes"]:
        text.echo(f"not relied on: {note}")
    freed = f"{text.size(goes['freed_bytes'])} {'would be freed' if goes['dry_run'] else 'freed'}"
    before, after = text.spans(goes["restorable_before"]), text.spans(goes["restorable_after"])
    text.echo(f"{freed}; restorable: {before} before, {after} after")
