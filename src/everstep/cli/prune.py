"""`everstep prune`: what goes, how many bytes that frees, and nothing that was asked to stay.

Several writers hold a run together: each leaves what the wishes need of it to restore the steps that all have.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import click
import msgspec

from everstep.cli import text
from everstep.cli.look import opened
from everstep.cli.progress import waiting
from everstep.errors import Damaged, Misuse, NotARun, StepNotHeld
from everstep.log import frame, lease
from everstep.log.inventory import Inventory, survey
from everstep.recover.cohort import common, inventories, stand, together
from everstep.recover.sound import base_faults
from everstep.store import keep, names, reserve
from everstep.store import prune as store
from everstep.store.disk import Disk, LocalDisk
from everstep.store.keep import Wishes
from everstep.store.manifest import BaseEntry, Manifest, Segment


def prune(url: str, specs: Sequence[str], *, dry_run: bool, as_json: bool) -> None:
    wishes = parse(specs)
    with opened(url) as (disk, path, epoch):
        if epoch is not None:
            raise Misuse(f"{url}: prune works on a whole run; leave out '#{epoch}'.")
        sound = Sound(disk)
        with waiting("looking"):
            found = _survey(disk, path)
            goes = describe(disk, found, _plan(found, wishes, sound), sound)
        if not dry_run:
            goes["freed_bytes"] += reserve.with_it(disk, lambda: _prune(disk, path, found, wishes, sound))
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


@dataclass(frozen=True, slots=True)
class Found:
    """What the writers hold that the newest step needs, and what writers hold that it does not need any more."""

    writers: list[Inventory]
    past: list[Inventory]

    @property
    def newest(self) -> int:
        newest = common(self.writers)
        assert newest is not None
        return newest


class Sound:
    """Whether a writer's base is what was written, every byte of it; asked once per base."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._known: dict[tuple[int, BaseEntry], list[str]] = {}

    def __call__(self, rank: int, entry: BaseEntry) -> bool:
        if (rank, entry) not in self._known:
            self._known[rank, entry] = base_faults(self._disk, rank, entry)
        return not self._known[rank, entry]

    @property
    def faults(self) -> list[str]:
        return [fault for faults in self._known.values() for fault in faults]


def _survey(disk: Disk, path: str) -> Found:
    """What the run holds; an error when that is nothing, or less than was acknowledged."""
    try:
        stood = stand(disk, path)
    except Damaged as damaged:
        raise _not_pruned(damaged) from damaged
    held = None if stood is None else inventories(disk, path, stood.epochs)
    if held is None:
        raise StepNotHeld(f"{path}: the run holds no step yet; there is nothing to prune.")
    if damages := [damage for inventory in held for damage in inventory.damages]:
        raise _not_pruned(damages[0], common(held))
    past = []
    for rank in names.ranks(disk.names(""))[len(held) :]:
        with suppress(NotARun):  # it was opened, and nothing was ever recorded
            past.append(survey(disk, path, rank=rank))
    return Found(held, past)


def _not_pruned(why: Damaged, intact: int | None = None) -> Damaged:
    told = f"{why} Nothing was pruned: what would go may be the last good copy."
    return Damaged(told, intact=why.intact if intact is None else intact)


def _plan(found: Found, wishes: Wishes, sound: Sound) -> list[Manifest]:
    """What every writer keeps, in the order of `writers`, then `past`."""
    newest, planned = found.newest, []
    points = set.intersection(*({e.step for e in one.bases} for one in found.writers))
    for one in found.writers:
        rank = one.manifest.writer
        planned.append(
            keep.plan(
                one.manifest, wishes, newest, sound=lambda entry, rank=rank: sound(rank, entry),  # type: ignore[misc]
                cuts=_cuts(one), tip=one.epoch, points=points,
            )
        )  # fmt: skip
    left = _left(found, planned)
    proved = all(any(sound(one.manifest.writer, entry) for entry in one.bases) for one in left)
    if common(left) != newest or not proved:
        lost = f"step {newest} could not be restored from what would be left"
        raise Damaged(f"nothing was pruned: {lost}. 'everstep verify' names the damage.", intact=newest)
    nothing = {} if wishes.branches else {"terms": (), "segments": (), "bases": ()}
    return planned + [msgspec.structs.replace(one.manifest, state="closed", **nothing) for one in found.past]


def _left(found: Found, planned: Sequence[Manifest]) -> list[Inventory]:
    """The inventories as they will be."""
    left = []
    for one, plan in zip(found.writers, planned, strict=False):
        kept = {names.segment(plan.writer, entry.epoch, entry.sequence) for entry in plan.segments}
        records = {step: record for step, record in one.records.items() if record.path in kept}
        bases = store.on_branch(plan, one.epoch)
        left.append(Inventory(one.identity, plan, one.epoch, one.acknowledged, bases, records))
    return left


def _cuts(found: Inventory) -> dict[tuple[int, int], Segment]:
    """Where the current branch leaves a segment in its middle: what follows belongs to a branch that goes."""
    limits, cuts = dict(store.lineage(found.manifest, found.epoch)), {}
    for entry, scanned in found.segments:
        limit = limits[entry.epoch]
        ours = [record for record in scanned.records if limit is None or record.step <= limit]
        if ours and len(ours) < len(scanned.records):
            end = ours[-1].offset - frame.FRAME.size + ours[-1].frame.nbytes
            cuts[entry.epoch, entry.sequence] = msgspec.structs.replace(entry, nbytes=end, last_step=ours[-1].step)
    return cuts


def _prune(disk: LocalDisk, path: str, seen: Found, wishes: Wishes, sound: Sound) -> int:
    """Do it, as the owner of every writer. Returns the bytes of litter that went as well.

    The epochs claimed here never open for records: their terms are left out of what is published, so the next owner
    continues the branch that was there before. A crash between two writers leaves each with what the newest step needs.
    """
    with _owned(disk, [*seen.writers, *seen.past]) as leases:
        found = _survey(disk, path)  # again: only now can nobody else change it
        freed = 0
        inventories = [*found.writers, *found.past]
        for one, plan in zip(inventories, _plan(found, wishes, sound), strict=True):
            rank, held = one.manifest.writer, leases[one.manifest.writer]
            said = msgspec.structs.replace(plan, acknowledged=one.acknowledged)  # not what a later branch had come to
            store.apply(disk, held.book, lambda _, said=said: said)  # type: ignore[misc]
            litter = {name: _size(disk, f"{names.writer(rank)}/{name}") for name in disk.names(names.writer(rank))}
            freed += sum(litter[name] for name in lease.sweep(disk, held.book))
        return freed


@contextmanager
def _owned(disk: LocalDisk, inventories: Sequence[Inventory]) -> Iterator[dict[int, lease.Lease]]:
    """The leases of all these writers, or of none."""
    opened_at = datetime.now(UTC).isoformat(timespec="seconds")
    held: dict[int, lease.Lease] = {}
    try:
        for one in inventories:
            rank = one.manifest.writer
            held[rank] = lease.take(disk, one.identity.run, rank, opened=opened_at, take_over=False)
        yield held
    finally:
        for owned in held.values():
            owned.release()


def describe(disk: Disk, found: Found, planned: Sequence[Manifest], sound: Sound) -> dict[str, Any]:
    """Everything that `prune` says, as JSON holds it."""
    pairs = list(zip([one.manifest for one in (*found.writers, *found.past)], planned, strict=True))
    files = sorted(name for now, plan in pairs for name in store.files(now) - store.files(plan))
    sizes = {name: _size(disk, name) for name in files}
    epochs = {t.epoch for now, plan in pairs for t in set(now.terms) - set(plan.terms) if t.from_step is not None}
    return {
        "run": pairs[0][0].run,
        "writers": len(found.writers),
        "bases": [
            {"writer": now.writer, "step": b.step, "epoch": b.epoch, "bytes": b.nbytes}
            for now, plan in pairs for b in now.bases if b not in plan.bases
        ],
        "segments": [
            {
                "writer": now.writer, "epoch": s.epoch, "sequence": s.sequence, "after_step": s.after_step,
                "last_step": s.last_step,
            }
            for now, plan in pairs for s in now.segments
            if (s.epoch, s.sequence) not in {(kept.epoch, kept.sequence) for kept in plan.segments}
        ],
        "epochs": sorted(epochs),
        "files": [{"file": name, "bytes": count} for name, count in sizes.items()],
        "freed_bytes": sum(sizes.values()),
        "restorable_before": together(found.writers),
        "restorable_after": together(_left(found, planned)),
        "branches_after": sorted({epoch for plan in planned for epoch in store.branches(plan)}),
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
    several = goes["writers"] > 1 or any(item["writer"] for item in (*goes["bases"], *goes["segments"]))
    for base in goes["bases"]:
        whose = f" of writer {base['writer']}" if several else ""
        text.echo(f"{verb}: base {base['step']}{whose}, epoch {base['epoch']}, {text.size(base['bytes'])}")
    for segment in goes["segments"]:
        last = "its end" if segment["last_step"] is None else segment["last_step"]
        whose = f" of writer {segment['writer']}" if several else ""
        steps = f"steps {segment['after_step'] + 1} to {last}"
        text.echo(f"{verb}: segment {segment['sequence']}{whose}, epoch {segment['epoch']}, {steps}")
    for note in goes["notes"]:
        text.echo(f"not relied on: {note}")
    freed = f"{text.size(goes['freed_bytes'])} {'would be freed' if goes['dry_run'] else 'freed'}"
    before, after = text.spans(goes["restorable_before"]), text.spans(goes["restorable_after"])
    text.echo(f"{freed}; restorable: {before} before, {after} after")
