"""What may go. Pure planning: which bases and segments a manifest can do without and still keep what was asked.

A record can be reached only from a base before it, so a base goes together with the records up to the next kept one.
"""

import math
from collections.abc import Callable

import msgspec

from everstep.store import names
from everstep.store.disk import Disk
from everstep.store.manifest import BaseEntry, Book, Manifest

ANY_STEP = 1 << 62


def lineage(manifest: Manifest, epoch: int | None = None) -> list[tuple[int, int | None]]:
    """The epochs of a branch, newest first, each with the last of its steps that belongs to the branch (None: all)."""
    path: list[tuple[int, int | None]] = []
    settled = [term for term in manifest.terms if term.from_step is not None]
    at = (settled[-1].epoch if settled else None) if epoch is None else epoch
    limit: int | None = None
    terms = {term.epoch: term for term in reversed(manifest.terms)}
    while at is not None and (term := terms.get(at)) is not None and term.from_step is not None:
        path.append((at, limit))
        limit = term.from_step if limit is None else min(limit, term.from_step)
        at = term.parent if term.parent is not None and term.parent < at else None
    return path


def on_branch(manifest: Manifest, epoch: int | None = None) -> list[BaseEntry]:
    """The bases of a branch, oldest first."""
    limits = dict(lineage(manifest, epoch))
    held = [
        entry for entry in manifest.bases
        if entry.epoch in limits and ((limit := limits[entry.epoch]) is None or entry.step <= limit)
    ]  # fmt: skip
    return sorted(held, key=lambda entry: (entry.step, entry.epoch))


def tip(manifest: Manifest, epoch: int, below: int | None = None) -> int:
    """The newest epoch that goes on from this one, of those before epoch `below`: a dead keeper's successors."""
    for term in sorted(manifest.terms, key=lambda term: term.epoch):
        if term.parent == epoch and term.from_step is not None and (below is None or term.epoch < below):
            epoch = term.epoch
    return epoch


def branches(manifest: Manifest) -> list[int]:
    """The epochs in which an older branch ends, oldest first: they hold steps that no later epoch continues."""
    settled = [term for term in manifest.terms if term.from_step is not None]
    found = []
    for term in settled[:-1]:
        end = _end(manifest, term.epoch)
        continued = any(child.parent == term.epoch and (child.from_step or 0) >= end for child in settled)
        if end > (term.from_step or 0) and not continued:
            found.append(term.epoch)
    return found


def history(manifest: Manifest) -> set[int]:
    """The epochs before the newest branch that hold nothing newer than its beginning: ranks went on in another layout,
    so nothing leads from there to here, but nothing was given up either."""
    path = lineage(manifest)
    root = next((term for term in manifest.terms if path and term.epoch == path[-1][0]), None)
    if root is None or root.parent is not None or not root.from_step:
        return set()
    return {
        term.epoch for term in manifest.terms
        if term.from_step is not None and term.epoch < root.epoch and _end(manifest, term.epoch) <= root.from_step
    }  # fmt: skip


def _end(manifest: Manifest, epoch: int) -> float:
    """The last step that an epoch holds; while it grows, any."""
    ends = [entry.last_step for entry in manifest.segments if entry.epoch == epoch]
    ends += [entry.step for entry in manifest.bases if entry.epoch == epoch]
    return max((math.inf if at is None else at for at in ends), default=-1)


def without(manifest: Manifest, kept: Callable[[BaseEntry], bool], *, from_step: int) -> Manifest:
    """The manifest with only the current branch, its kept bases, and its segments with steps after `from_step`."""
    limits = dict(lineage(manifest))
    segments = tuple(
        entry for entry in manifest.segments
        if entry.epoch in limits
        and (entry.last_step is None or entry.last_step > from_step or entry.nbytes is None)
        and ((limit := limits[entry.epoch]) is None or entry.after_step < limit)
    )  # fmt: skip
    bases = tuple(entry for entry in on_branch(manifest) if kept(entry))
    needed = {entry.epoch for entry in segments} | {entry.epoch for entry in bases} | {manifest.epoch}
    terms = tuple(
        term
        for term in manifest.terms
        if term.from_step is None or (term.epoch in limits and term.epoch >= min(needed))
    )
    return msgspec.structs.replace(manifest, segments=segments, bases=bases, terms=terms)


def files(manifest: Manifest) -> set[str]:
    """The paths a manifest names, but for the manifest itself."""
    rank = manifest.writer
    named = {names.segment(rank, entry.epoch, entry.sequence) for entry in manifest.segments}
    named |= {names.witness(rank, term.epoch) for term in manifest.terms}
    for entry in manifest.bases:
        named |= {names.base(rank, entry.step, entry.epoch), names.tensors(rank, entry.step, entry.epoch)}
    return named


def apply(disk: Disk, book: Book, edit: Callable[[Manifest], Manifest]) -> list[str]:
    """Publish the edited manifest, then remove what it no longer names. A crash in between leaves only litter."""
    before = files(book.manifest)
    gone = sorted(before - files(book.change(edit)))
    for path in gone:
        book.check()
        if disk.exists(path):
            disk.remove(path)
    if gone:
        disk.sync_dir(names.writer(book.manifest.writer))
    return gone


def held_bytes(manifest: Manifest) -> int:
    """What the manifest's files take, the growing segment left out."""
    return sum(entry.nbytes or 0 for entry in manifest.segments) + sum(entry.nbytes for entry in manifest.bases)


def within(manifest: Manifest, bytes_max: int, floor: int = ANY_STEP) -> Manifest:
    """The manifest without its oldest bases and records, as many as it takes to fit `bytes_max`.

    The newest two bases stay, whatever their size: should the newest be damaged, the one before it still leads on. So
    does what leads to step `floor`, the newest that all writers hold: alone, a newer one is of no use.
    Other branches stay as well, until someone prunes them; what ranks held in another layout goes first.
    """
    bases, past = on_branch(manifest), history(manifest)
    if set(branches(manifest)) - past or any(entry.epoch not in past for entry in set(manifest.bases) - set(bases)):
        return manifest
    if past and held_bytes(manifest) > bytes_max and bases and bases[0].step <= floor:
        manifest = without(manifest, set(bases).__contains__, from_step=-1)
    for first in range(max(1, len(bases) - 1)):
        if held_bytes(manifest) <= bytes_max or not bases or bases[first].step > floor:
            break
        manifest = without(manifest, set(bases[first:]).__contains__, from_step=bases[first].step)
    return manifest
