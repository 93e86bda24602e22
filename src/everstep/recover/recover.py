"""Brings a state to a step: by the shortest route, and by another where the first proves damaged."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from everstep.capture.roster import Roster
from everstep.capture.snapshot import versions
from everstep.codec import tree
from everstep.errors import Damaged, ReplayDiffers
from everstep.recover import load
from everstep.recover.choose import Route
from everstep.recover.place import place_base
from everstep.recover.replay import Folded, Replay, read
from everstep.shadow.rules import Rules
from everstep.store.base import Index
from everstep.store.disk import Disk


@dataclass(frozen=True, slots=True)
class Recovered:
    """A state that was brought to a step. `context` holds every item of the context, decoded."""

    step: int
    context: dict[str, Any]
    folded: Folded
    index: Index
    replayed: str
    replay_seconds: float
    records: int
    notes: tuple[str, ...]


def recover(
    disk: Disk, rank: int, routes: list[Route], roster_for: Callable[[Index, dict[str, torch.Tensor]], Roster]
) -> Recovered:
    """Follow the first route that proves right. `roster_for` gives what the base is to be placed into."""
    notes: list[str] = []
    for at, route in enumerate(routes):
        try:
            index, tensors = load.load(disk, rank, route.base)
        except Damaged as damaged:
            if at + 1 == len(routes):
                raise
            notes.append(f"{damaged} An older base was used instead.")
            continue
        roster = roster_for(index, tensors)
        return _replay(disk, route, index, tensors, roster, notes)
    raise Damaged("there is no base to start from.")


def _replay(
    disk: Disk, route: Route, index: Index, tensors: dict[str, torch.Tensor], roster: Roster, notes: list[str]
) -> Recovered:
    """Replay by native rules; should a digest differ, once more by the optimizer itself; should that differ, refuse."""
    rules: Rules | None = Rules(roster.parameters, roster.optimizers, torch.get_num_threads())
    while True:
        place_base(index, tensors, roster)
        folded: Folded = {name: (item, tensors, route.base.step) for name, item in index.content.context.items()}
        replay = Replay(roster, rules)
        began = time.perf_counter()
        try:
            replay.run(read(disk, route.records), folded)
        except ReplayDiffers as differs:
            if rules is not None and replay.natively:
                notes.append(f"{differs} The native rules were set aside and the optimizer itself was used.")
                rules = None
                continue
            raise ReplayDiffers(_why(differs, index)) from differs
        spent = time.perf_counter() - began
        context = {name: tree.decode(item, blobs.__getitem__) for name, (item, blobs, _) in folded.items()}
        return Recovered(route.step, context, folded, index, _by(replay), spent, len(route.records), tuple(notes))


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
