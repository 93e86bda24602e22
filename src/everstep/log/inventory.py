"""What a run holds: bases, records, damage. Reads only; no torch, so that looking at a run is instant."""

from dataclasses import dataclass, field

from everstep.errors import Damaged, NotARun, StepNotHeld
from everstep.log import frame
from everstep.log.reader import Located, Scanned, scan
from everstep.store import prune, witness
from everstep.store.disk import Disk
from everstep.store.manifest import BaseEntry, Identity, Manifest, Segment, load_identity, load_newest
from everstep.types import Span

RETRIES = 3


@dataclass(slots=True)
class Inventory:
    """One branch of one writer. `records` maps each step to the record that leads to it."""

    identity: Identity
    manifest: Manifest
    epoch: int | None
    acknowledged: int
    bases: list[BaseEntry]
    records: dict[int, Located] = field(default_factory=dict)
    segments: list[tuple[Segment, Scanned]] = field(default_factory=list)
    damages: list[Damaged] = field(default_factory=list)
    promised: tuple[Span, ...] = ()
    """The steps that were seen to be acknowledged, as first and last of each stretch."""

    def spans(self) -> list[Span]:
        """The steps that can be restored, as first and last of each unbroken stretch, oldest first."""
        found: list[Span] = []
        for entry in self.bases:
            last = self.reach(entry.step)
            if found and entry.step <= found[-1][1] + 1:
                found[-1] = (found[-1][0], max(last, found[-1][1]))
            else:
                found.append((entry.step, last))
        return found

    def reach(self, step: int) -> int:
        """How far the log leads on from `step`."""
        while (record := self.records.get(step + 1)) is not None and record.frame.kind == frame.UPDATE:
            step += 1
        return step

    @property
    def newest(self) -> int:
        """The newest step that can be restored; -1 for none."""
        return max((last for _, last in self.spans()), default=-1)


def survey(disk: Disk, url: str, *, rank: int = 0, epoch: int | None = None) -> Inventory:
    """Everything about one branch, the newest unless `epoch` names another. Never writes.

    A file that vanishes between reading the manifest and opening it was pruned by the run's owner: look again.
    """
    identity = load_identity(disk, url)
    for _ in range(RETRIES):
        manifest = _manifest(disk, url, identity, rank)
        found = _survey(disk, identity, manifest, epoch)
        again = load_newest(disk, rank)
        if not found.damages or again is None or (again.segments, again.bases) == (manifest.segments, manifest.bases):
            break
    return found


def _manifest(disk: Disk, url: str, identity: Identity, rank: int) -> Manifest:
    try:
        manifest = load_newest(disk, rank)
    except FileNotFoundError:  # the directory of this writer, or a manifest replaced while we looked
        manifest = load_newest(disk, rank) if f"w{rank:05d}" in disk.names("") else None
    if manifest is None:
        raise NotARun(f"{url}: the run has no writer {rank}; nothing was ever recorded in it.")
    if manifest.run != identity.run:
        raise Damaged(f"{url}: writer {rank} belongs to run {manifest.run}, the directory to {identity.run}.")
    return manifest


def _survey(disk: Disk, identity: Identity, manifest: Manifest, epoch: int | None) -> Inventory:
    path = prune.lineage(manifest, epoch)
    if epoch is not None and not path:
        held = sorted(term.epoch for term in manifest.terms if term.from_step is not None)
        raise StepNotHeld(f"the run has no epoch {epoch}; it has {held}.")
    newest = path[0][0] if path else None
    seen = promised(disk, manifest, newest)
    found = Inventory(
        identity, manifest, newest, seen[-1][1] if seen else -1, prune.on_branch(manifest, epoch), promised=seen
    )
    before: int | None = None
    after: tuple[int, int] | None = None  # the epoch and step that `before` belongs to
    terms = {term.epoch: term for term in reversed(manifest.terms)}
    entries: dict[int, list[Segment]] = {}
    for entry in manifest.segments:
        entries.setdefault(entry.epoch, []).append(entry)
    for at, limit in reversed(path):
        term = terms[at]
        for entry in sorted(entries.get(at, ()), key=lambda entry: entry.sequence):
            if limit is not None and entry.after_step >= limit:
                continue
            if entry.sequence == 0:
                before = term.chain
            elif (at, entry.after_step) != after:  # what was between was pruned
                before = None
            scanned = scan(disk, manifest, entry, before=before, acknowledged=acknowledged(disk, manifest, at))
            found.segments.append((entry, scanned))
            found.records.update((r.step, r) for r in scanned.records if limit is None or r.step <= limit)
            if scanned.damage is not None:
                found.damages.append(scanned.damage)
            before = None if scanned.damage else scanned.chain
            after = (at, scanned.records[-1].step if scanned.records else entry.after_step)
    return found


def acknowledged(disk: Disk, manifest: Manifest, epoch: int | None) -> int:
    """The newest step of this epoch that anyone saw acknowledged; -1 when nobody did."""
    return max((last for _, last in promised(disk, manifest, epoch)), default=-1)


def promised(disk: Disk, manifest: Manifest, epoch: int | None) -> tuple[Span, ...]:
    """The steps of this epoch's branch that anyone saw acknowledged, the newest last."""
    if epoch is None:
        return ()
    settled = [term.epoch for term in manifest.terms if term.from_step is not None]
    noted = manifest.acknowledged if settled and settled[-1] == epoch else -1
    seen = witness.load(disk, manifest.writer, epoch)
    spans = () if seen is None else seen.spans
    return spans if noted <= (-1 if seen is None else seen.step) else (*spans, (noted, noted))
