"""Brings a state to a step: the shortest proved route, another where the first proves damaged, and a ledger of it all."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from everstep.capture import rng
from everstep.capture.context import Context
from everstep.capture.roster import Roster
from everstep.capture.snapshot import versions
from everstep.codec import tree
from everstep.errors import Damaged, ReplayDiffers
from everstep.recover import load, match
from everstep.recover.choose import Route
from everstep.recover.ledger import Item, Ledger, Status, refuse
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
        try:
            replay.run(read(disk, route.records), folded)
        except ReplayDiffers as differs:
            if rules is not None and replay.natively:
                notes.append(f"{differs} The native rules were set aside and the optimizer itself was used.")
                rules = None
                continue
            raise ReplayDiffers(_why(differs, index)) from differs
        context = {name: tree.decode(item, blobs.__getitem__) for name, (item, blobs, _) in folded.items()}
        return Recovered(route.step, context, folded, index, _by(replay), len(route.records), tuple(notes))


def onto_program(
    disk: Disk, rank: int, routes: list[Route], roster: Roster, context: Context, *, strict: bool
) -> Ledger:
    """Bring a training program to the routes' step: model, optimizers, `state=`, generators, all of it or an error."""
    began = time.perf_counter()

    def checked(index: Index, _tensors: dict[str, torch.Tensor]) -> Roster:
        if strict:
            refuse(routes[0].step, match.differences(index, roster, context))
        return roster

    recovered = recover(disk, rank, routes, checked)
    missing = _place_context(recovered, roster, context)
    return Ledger(
        recovered.step, recovered.index.step, recovered.records, recovered.replayed, time.perf_counter() - began,
        tuple(_items(recovered, roster, context, missing)), recovered.notes,
    )  # fmt: skip


def _place_context(recovered: Recovered, roster: Roster, context: Context) -> list[str]:
    buffers = roster.buffers()
    generators: dict[str, Any] = {}
    for name, value in recovered.context.items():
        kind, _, rest = name.partition("/")
        if kind == "buffer" and rest in buffers and buffers[rest].shape == value.shape:
            with torch.no_grad():
                buffers[rest].copy_(value)
        elif kind == "extra" and rest in roster.modules:
            roster.modules[rest].set_extra_state(value)
        elif kind == "state" and rest in context.state:
            context.state[rest].load_state_dict(value)
        elif kind == "rng":
            generators[rest] = value
    return rng.put(generators)  # last: loading anything above may have drawn numbers


def _items(recovered: Recovered, roster: Roster, context: Context, missing: list[str]) -> list[Item]:
    base = f"base {recovered.index.step}"
    through = base if not recovered.records else f"{base} and {recovered.records} records ({recovered.replayed})"
    stored = {item.tensor.name for item in recovered.index.tensors}
    items = [
        Item(name, "parameter", "restored" if f"model/{name}" in stored else "kept", through)
        for name in roster.parameters
    ]
    for key, optimizer in roster.optimizers.items():
        held = any(entry.key == key for entry in recovered.index.content.optimizers)
        status: Status = "restored" if held else "kept"
        items.append(Item(key, "hyper", status, through))
        items += [
            Item(f"{key}/{name}", "optimizer", status, through)
            for name, p in roster.parameters.items()
            if p in optimizer.state
        ]
    derived = set(recovered.index.content.derived)
    kinds: dict[str, Any] = {"buffer": "buffer", "extra": "extra", "state": "state", "rng": "generator"}
    ours = {"buffer": set(roster.buffers()), "extra": set(roster.extra()), "state": set(context.state)}
    for name, (_, _, step) in recovered.folded.items():
        kind, _, rest = name.partition("/")
        placed = rest in ours[kind] if kind in ours else rest not in missing
        status = "restored" if placed else "derived" if rest in derived else "missing"
        items.append(Item(rest, kinds[kind], status, base if step == recovered.index.step else f"record {step}"))
    return items


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
        " Everything around it is as it was: the optimizer keeps state outside optimizer.state, or its step is not deterministic."
    )  # fmt: skip
    return f"{differs}{reason} Nothing wrong is handed out: resume at base {index.step} with run.resume(step={index.step}), or where it trained."
