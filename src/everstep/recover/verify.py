"""Proves a run, or names what is damaged: every checksum, chain and digest of every branch. Reads only; no torch.

A torn tail is what a crash leaves and no damage: nothing in it was acknowledged. It is reported.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, fields

from everstep.codec import body
from everstep.errors import Damaged, NotARun, StepNotHeld
from everstep.log import reader
from everstep.log.inventory import Inventory, survey
from everstep.log.reader import Scanned
from everstep.recover import choose
from everstep.recover.sound import base_faults
from everstep.store import base, names, prune
from everstep.store import cohort as cohorts
from everstep.store.disk import Disk
from everstep.store.manifest import BaseEntry, Manifest, Segment, load_newest

Tick = Callable[[int, int], None]
"""Called with bytes done and bytes in all."""


@dataclass(frozen=True, slots=True)
class Damage:
    """`kind`: manifest, segment, record, base, branch or cohort. `path`: the file, within the run's directory."""

    kind: str
    path: str
    step: int | None
    what: str


@dataclass(slots=True)
class Branch:
    """One branch, with what is left when everything damaged is set aside."""

    inventory: Inventory
    current: bool
    spans: list[tuple[int, int]] = field(default_factory=list)


@dataclass(slots=True)
class Report:
    """What was read and proved, and what was not."""

    branches: list[Branch] = field(default_factory=list)
    segments: int = 0
    records: int = 0
    bases: int = 0
    tensors: int = 0
    nbytes: int = 0
    damages: list[Damage] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def verify_all(disk: Disk, url: str, *, tick: Tick = lambda _done, _total: None) -> Report:
    """The same of every writer that the run has."""
    reports, nothing = [], NotARun(f"{url}: nothing was ever recorded in this run.")
    for rank in names.ranks(disk.names("")):
        try:
            reports.append(verify(disk, url, rank=rank, tick=tick))
        except NotARun as none:  # this writer died before it had begun
            nothing = none
    if not reports:
        raise nothing
    whole = reports[0]
    for report in reports[1:]:
        for part in fields(Report):
            setattr(whole, part.name, getattr(whole, part.name) + getattr(report, part.name))
    try:
        cohorts.load_all(disk)
    except Damaged as damaged:
        whole.damages.append(Damage("cohort", ".", None, str(damaged)))
    return whole


def verify(disk: Disk, url: str, *, rank: int = 0, tick: Tick = lambda _done, _total: None) -> Report:
    """Read everything that the run's manifest names. A damaged file does not hide the others."""
    report = Report()
    try:
        report.branches = _branches(disk, url, rank)
    except Damaged as damaged:
        report.damages.append(Damage("manifest", names.writer(rank), None, str(damaged)))
        return report
    manifest = report.branches[0].inventory.manifest
    proof = _Proof(disk, manifest, report, tick)
    proof.segments({(e.epoch, e.sequence): (e, s) for b in report.branches for e, s in b.inventory.segments})
    proof.bases()
    _set_aside_pruned(disk, manifest, report)
    for branch in report.branches:
        proof.settle(branch)
    return report


def _branches(disk: Disk, url: str, rank: int) -> list[Branch]:
    """The current branch, then the older ones. Between them they hold every segment that the manifest names."""
    first = survey(disk, url, rank=rank)
    found = [Branch(first, current=True)]
    for epoch in prune.branches(first.manifest):
        try:
            found.append(Branch(survey(disk, url, rank=rank, epoch=epoch), current=False))
        except StepNotHeld:  # pruned since the first look
            continue
    return found


def _set_aside_pruned(disk: Disk, manifest: Manifest, report: Report) -> None:
    """A file that the run's owner pruned while we read is missing, not damaged."""
    again = load_newest(disk, manifest.writer) if report.damages else None
    if again is not None:
        gone = prune.files(manifest) - prune.files(again)
        report.notes += [f"{d.path}: was pruned while it was read." for d in report.damages if d.path in gone]
        report.damages = [damage for damage in report.damages if damage.path not in gone]


class _Proof:
    """Goes through the files and adds to the report what it finds."""

    def __init__(self, disk: Disk, manifest: Manifest, report: Report, tick: Tick) -> None:
        self._disk = disk
        self._manifest = manifest
        self._report = report
        self._tick = tick
        self._total = prune.held_bytes(manifest)
        self._bad_records: set[tuple[str, int]] = set()
        self._bad_bases: set[BaseEntry] = set()
        self._said: dict[tuple[int, int], tuple[str, str | None]] = {}

    def segments(self, found: dict[tuple[int, int], tuple[Segment, Scanned]]) -> None:
        """Every body of every record that the scan has found."""
        self._total += sum(s.end for e, s in found.values() if e.nbytes is None)
        for entry, scanned in found.values():
            path = names.segment(self._manifest.writer, entry.epoch, entry.sequence)
            self._report.segments += 1
            if scanned.damage is not None:
                self._damaged("segment", path, scanned.damage.intact, str(scanned.damage))
            elif entry.nbytes is None and scanned.tail_bytes:
                last = scanned.records[-1].step if scanned.records else entry.after_step
                self._report.notes.append(
                    f"segment {names.short(path)}: {scanned.tail_bytes} bytes after step {last} are not a whole "
                    "record. A crash tore them, or they are being written. Nothing in them was acknowledged; this is "
                    "not damage."
                )
            if scanned.records:
                self._bodies(path, entry, scanned)

    def _bodies(self, path: str, entry: Segment, scanned: Scanned) -> None:
        try:
            source = self._disk.source(path)
        except OSError as gone:
            self._damaged("segment", path, entry.after_step, f"segment {names.short(path)}: cannot be read ({gone}).")
            return
        try:
            for record in scanned.records:
                try:
                    found = body.parse(reader.body(source, record), name=f"record of step {record.step} in {path}")
                    self._said[entry.epoch, record.step] = (found.head.parameters, found.head.state)
                    self._report.records += 1
                except Damaged as damaged:
                    self._bad_records.add((path, record.step))
                    self._damaged("record", path, record.step, str(damaged))
                self._done(record.frame.nbytes)
        finally:
            source.close()

    def bases(self) -> None:
        """Every tensor of every base, and whether base and log say the same of a step."""
        rank = self._manifest.writer
        for entry in self._manifest.bases:
            path = names.tensors(rank, entry.step, entry.epoch)
            faults = base_faults(self._disk, rank, entry, self._done) or self._disagreement(rank, entry)
            for fault in faults:
                self._bad_bases.add(entry)
                self._damaged("base", path, entry.step, fault)
            self._report.bases += 1

    def _disagreement(self, rank: int, entry: BaseEntry) -> list[str]:
        index = base.load(self._disk, rank, entry)
        self._report.tensors += len(index.tensors)
        parameters, state = self._said.get((entry.epoch, entry.step), (index.content.parameters, None))
        if parameters in ("", index.content.parameters) and state in (None, index.content.state):
            return []
        return [
            f"base {entry.step}: holds another state than the trainer had, by the digest in the record of that step."
        ]

    def settle(self, branch: Branch) -> None:
        """What can be restored without anything that proved damaged."""
        found = branch.inventory
        held = [entry for entry in found.bases if entry not in self._bad_bases]
        records = {step: r for step, r in found.records.items() if (r.path, step) not in self._bad_records}
        sound = Inventory(found.identity, found.manifest, found.epoch, found.acknowledged, held, records)
        branch.spans = sound.spans()
        if sound.newest >= found.acknowledged:
            return
        lost = f"step {found.acknowledged} was acknowledged, but the newest that can be restored is {sound.newest}."
        if not branch.current:
            self._report.notes.append(f"branch of epoch {found.epoch}: {lost}")
        elif not self._report.damages:
            try:
                choose.routes(found)
            except Damaged as damaged:
                self._damaged("branch", names.writer(self._manifest.writer), sound.newest, str(damaged))

    def _damaged(self, kind: str, path: str, step: int | None, what: str) -> None:
        self._report.damages.append(Damage(kind, path, step, what))

    def _done(self, count: int) -> None:
        self._report.nbytes += count
        self._tick(self._report.nbytes, self._total)
