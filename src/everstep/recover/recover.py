"""Brings a state to a step: by the shortest route, and by another where the first proves damaged."""

import itertools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from everstep.capture.roster import Roster, elementwise
from everstep.capture.snapshot import versions
from everstep.codec import body, tree
from everstep.errors import Damaged, ReplayDiffers
from everstep.recover.ferry import Ferry
from everstep.recover.place import place_base, place_hyper
from everstep.recover.replay import Cut, Folded, Replay
from everstep.recover.ways import Way
from everstep.shadow.rules import Rules
from everstep.store.base import Index
from everstep.types import Pair


@dataclass(frozen=True, slots=True)
class Recovered:
    """A state that was brought to a step. `context` holds every item of the context, decoded. `digests`: of its tensors
    by name, of those that a base or the last record proved."""

    step: int
    context: dict[str, Any]
    folded: Folded
    index: Index
    origin: str
    replayed: str
    replay_seconds: float
    records: int
    notes: tuple[str, ...]
    digests: Mapping[str, Pair] = field(default_factory=dict)


Placing = Callable[[Index, dict[str, torch.Tensor], Roster, Ferry], None]


def recover(
    ways: Sequence[Way], roster_for: Callable[[Index, dict[str, torch.Tensor]], Roster], place: Placing = place_base,
    *, program: Roster | None = None, in_step: bool = False, cut: Callable[[Index], Cut | None] = lambda _: None,
) -> Recovered:  # fmt: skip
    """Follow the first way that proves right. `roster_for` gives what the state is to be placed into, by `place`: it
    may be the `program` itself.

    `in_step`: other ranks do the same, and each of their optimizers' steps may need all of them. `cut`: where the
    state is only parts of a base's, which.
    """
    notes: list[str] = []
    for at, way in enumerate(ways):
        try:
            index, tensors, versions = way.load()
        except Damaged as damaged:
            if at + 1 == len(ways):
                raise
            notes.append(f"{damaged} An older base was used instead.")
            continue
        roster = roster_for(index, tensors)
        parts, own = cut(index), roster is program
        return _replay(way, index, tensors, versions, roster, notes, place, parts, own=own, in_step=in_step)
    raise Damaged("there is no base to start from.")


def _replay(
    way: Way, index: Index, tensors: dict[str, torch.Tensor], old: Mapping[str, int], roster: Roster, notes: list[str],
    place: Placing, cut: Cut | None, *, own: bool, in_step: bool,
) -> Recovered:  # fmt: skip
    """Replay by native rules; should a digest differ, once more by the optimizer itself; should that differ, refuse."""
    rules = None if in_step else Rules(roster.parameters, roster.optimizers, torch.get_num_threads())
    ferry = Ferry()
    while True:
        place(index, tensors, roster, ferry)
        folded: Folded = {name: (item, tensors, way.start) for name, item in index.content.context.items()}
        replay = Replay(roster, rules, ferry, to_the_end=in_step, cut=cut)
        began = time.perf_counter()
        try:
            records = way.records()
            if old:
                records = _repaired(replay, records, old, way.start)
                place_hyper(index, tensors, roster)  # the records that repaired it set theirs
            replay.run(records, folded)
            _refuse_unproved(way, index, roster, replay, own=own)
        except ReplayDiffers as differs:
            if rules is not None and replay.natively:
                notes.append(f"{differs} The native rules were set aside and the optimizer itself was used.")
                rules = None
                continue
            raise ReplayDiffers(_why(differs, index)) from differs
        spent = time.perf_counter() - began
        context = {name: tree.decode(item, blobs.__getitem__) for name, (item, blobs, _) in folded.items()}
        digests = replay.digests if way.count else {s.tensor.name: _pair(s.digest) for s in index.tensors if s.digest}
        return Recovered(
            way.step, context, folded, index, way.name, _by(replay), spent, way.count, tuple(notes), digests
        )  # fmt: skip


def _pair(digest: str) -> Pair:
    """A digest as it stands in a base."""
    return int(digest[:16], 16), int(digest[16:], 16)


def _refuse_unproved(way: Way, index: Index, roster: Roster, replay: Replay, *, own: bool) -> None:
    """A device digests only now and then. Where it trained, its own optimizer repeats what it did; elsewhere another
    may round otherwise, and nothing would tell. So may one that needs more than the part that it is given."""
    then, now = index.content.versions, versions()
    here = all(parameter.device.type == "cuda" for parameter in roster.parameters.values())
    here = here and (own or all(map(elementwise, roster.optimizers.values())))
    if not then.get("cuda") or way.count == 0 or replay.proved == way.step:
        return
    if here and all(then.get(name) == now.get(name) for name in ("torch", "cuda")):
        return
    known = f"Step {replay.proved} is proved" if replay.proved >= 0 else f"Step {way.start} is held as it was"
    raise ReplayDiffers(
        f"step {way.step} was trained on {then['cuda']} with torch {then['torch']} and has no digest: nothing could "
        f"prove a replay elsewhere. {known}."
    )


def _repaired(
    replay: Replay, records: Iterator[tuple[int, body.Body]], old: Mapping[str, int], start: int
) -> Iterator[tuple[int, body.Body]]:
    """Use up the records that bring a state's older parts to its step; the rest of them."""
    for step, record in records:
        if step > start:
            return itertools.chain([(step, record)], records)
        replay.repair(step, record, old)
    return iter(())


def _by(replay: Replay) -> str:
    parts = [
        name for name, count in (("native rules", replay.natively), ("the optimizer itself", replay.by_torch)) if count
    ]
    return " and ".join(parts) or "nothing to replay"


def _why(differs: ReplayDiffers, index: Index) -> str:
    ours = versions()
    changed = [
        f"{name} {then} then, {ours.get(name)} now"
        for name, then in index.content.versions.items()
        if ours.get(name) != then
    ]
    reason = f" What is not as it was: {'; '.join(changed)}." if changed else (
        " Everything around it is as it was: the optimizer keeps state outside optimizer.state, or its step is not "
        "deterministic."
    )  # fmt: skip
    away = f"resume at base {index.step} with run.resume(step={index.step}), or where it trained."
    return f"{differs}{reason} Nothing wrong is handed out: {away}"
