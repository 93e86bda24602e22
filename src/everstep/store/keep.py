"""What `everstep prune` leaves. Pure planning: a manifest and wishes in, the manifest without the rest out.

A record can be reached only from a base before it. So what stays is a base, the anchor, everything after it, single
bases before it as points, and, if they were asked for, the older branches from where they leave the current one.
"""

from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass

import msgspec

from everstep.store.manifest import BaseEntry, Manifest, Segment
from everstep.store.prune import branches, lineage, on_branch

BASES_DEFAULT = 2
"""As the keeper does: should the newest base be damaged, the one before it still leads on."""

Sound = Callable[[BaseEntry], bool]
Cuts = Mapping[tuple[int, int], Segment]
"""Segments, by epoch and sequence, as they are when cut where the current branch leaves them."""


@dataclass(frozen=True, slots=True)
class Wishes:
    """`last` newest steps, `bases` newest bases and all after them, one base per `every` steps, older `branches`."""

    last: int | None = None
    bases: int | None = None
    every: int | None = None
    branches: bool = False


def plan(
    manifest: Manifest, wishes: Wishes, newest: int, *, sound: Sound, cuts: Cuts, tip: int | None = None,
    points: Container[int] | None = None,
) -> Manifest:  # fmt: skip
    """The manifest with what was wished for. `newest` is the newest restorable step; it stays restorable.

    Only bases that `sound` has proved are relied on: a damaged one neither counts nor takes the place of an older one.
    `tip` is the epoch in which the current branch ends, the newest by default. Of a writer among several, bases newer
    than `newest` are of no use yet, and single ones only at the `points` that all have.
    """
    held = on_branch(manifest, tip)
    first = _anchor([entry for entry in held if entry.step <= newest], wishes, newest, sound)
    bases = {entry for entry in held if entry.step >= first}
    bases |= _points([e for e in held if points is None or e.step in points], wishes.every, first, sound)
    segments = _segments(manifest, tip, first)
    epochs = {epoch for epoch, _ in lineage(manifest, tip)}
    if wishes.branches:
        for other in branches(manifest):
            older = on_branch(manifest, other)
            start = _at_or_before(older, _fork(manifest, other, tip), sound)
            bases |= {entry for entry in older if entry.step >= start}
            segments |= _segments(manifest, other, start)
            epochs |= {epoch for epoch, _ in lineage(manifest, other)}
    else:
        segments = {cuts.get((entry.epoch, entry.sequence), entry) for entry in segments}
    oldest = min({entry.epoch for entry in segments} | {entry.epoch for entry in bases}, default=0)
    return msgspec.structs.replace(
        manifest,
        state="closed",
        terms=tuple(t for t in manifest.terms if t.from_step is not None and t.epoch in epochs and t.epoch >= oldest),
        segments=tuple(sorted(segments, key=lambda entry: (entry.epoch, entry.sequence))),
        bases=tuple(entry for entry in manifest.bases if entry in bases),
    )


def _anchor(held: list[BaseEntry], wishes: Wishes, newest: int, sound: Sound) -> int:
    """The step of the base from which all records stay."""
    wanted: list[int] = []
    if wishes.last is not None:
        wanted.append(_at_or_before(held, newest - wishes.last + 1, sound))
    if wishes.bases is not None or not wanted:
        count, last = wishes.bases or BASES_DEFAULT, -1
        for entry in reversed(held):
            if sound(entry):
                count, last = count - 1, entry.step
            if count == 0:
                break
        wanted.append(last if count == 0 else _first(held))
    return min(wanted)


def _at_or_before(held: list[BaseEntry], step: int, sound: Sound) -> int:
    """The newest sound base that leads to `step`; the oldest of all when none does."""
    return next((entry.step for entry in reversed(held) if entry.step <= step and sound(entry)), _first(held))


def _first(held: list[BaseEntry]) -> int:
    return held[0].step if held else -1


def _points(held: list[BaseEntry], every: int | None, first: int, sound: Sound) -> set[BaseEntry]:
    """The first sound base at or after each multiple of `every`."""
    found: dict[int, BaseEntry] = {}
    if every is not None:
        for entry in held:
            if entry.step < first and entry.step // every not in found and sound(entry):
                found[entry.step // every] = entry
    return set(found.values())


def _segments(manifest: Manifest, tip: int | None, after: int) -> set[Segment]:
    """The segments of a branch with steps after `after`. A growing one stays: nobody has said yet where it ends."""
    limits = dict(lineage(manifest, tip))

    def needed(entry: Segment) -> bool:
        limit = limits[entry.epoch]
        return (entry.last_step is None or entry.last_step > after) and (limit is None or entry.after_step < limit)

    return {entry for entry in manifest.segments if entry.epoch in limits and needed(entry)}


def _fork(manifest: Manifest, other: int, tip: int | None) -> int:
    """The last step that a branch shares with the current one; -1 when they share nothing."""
    current = dict(lineage(manifest, tip))
    for epoch, limit in lineage(manifest, other):
        if epoch in current:
            return min((at for at in (limit, current[epoch]) if at is not None), default=-1)
    return -1
