"""Brings a training program to a step, and says of every item where it came from."""

import time
from collections.abc import Sequence
from typing import Any

import torch

from everstep.capture import rng
from everstep.capture.context import Context
from everstep.capture.roster import Roster
from everstep.capture.shards import is_sharded, local
from everstep.capture.snapshot import versions
from everstep.recover import match
from everstep.recover.ferry import Ferry
from everstep.recover.ledger import Item, Ledger, Status, refuse
from everstep.recover.place import copy_common, place_base, unowned
from everstep.recover.recover import Recovered, recover
from everstep.recover.standin import assemble
from everstep.recover.ways import Way
from everstep.store.base import Index


def onto_program(
    ways: Sequence[Way], roster: Roster, context: Context, *, strict: bool, in_step: bool = False
) -> Ledger:
    """Model, optimizers, `state=`, generators: all of it, or an error that lists every difference.

    If not `strict`, a program that differs gets what both hold: the run's own state is recovered and proved beside it.
    So is the state of a program of DTensors, whose optimizer works on their local parts; unless all ranks go `in_step`.
    """
    began = time.perf_counter()
    wanted = ways[0].step
    beside: list[tuple[Roster, Index, dict[str, torch.Tensor]]] = []
    differs = False

    def target(index: Index, tensors: dict[str, torch.Tensor]) -> Roster:
        nonlocal differs
        found = match.differences(index, roster, context)
        differs = bool(found)
        if strict:
            refuse(wanted, found)
        if not found and (in_step or not any(map(is_sharded, roster.parameters.values()))):
            return roster
        device = next((local(parameter).device for parameter in roster.parameters.values()), None)
        stand_in = assemble(index, tensors, replay=index.step != wanted, device=device, own=roster.optimizers)
        beside.append((stand_in, index, tensors))
        return beside[-1][0]

    recovered = recover(ways, target, program=roster, in_step=in_step)
    if beside:
        stand_in, index, tensors = beside[-1]
        ferry = Ferry()
        place_base(index, tensors, roster, ferry)
        copy_common(stand_in, roster, ferry)
    missing = place_context(recovered, roster, context)
    return Ledger(
        recovered.step, recovered.index.step, recovered.records, recovered.replayed, time.perf_counter() - began,
        recovered.replay_seconds, tuple(_items(recovered, roster, context, missing)), recovered.notes,
        "the program holds other things than the run" if differs else _moved(recovered.index),
    )  # fmt: skip


def _moved(index: Index) -> str | None:
    """Whether the arithmetic may not be what it was: then what follows needs a base of its own."""
    now = versions()
    moved = [
        f"{name} {then} is now {now.get(name)}"
        for name, then in index.content.versions.items()
        if now.get(name) != then
    ]
    return f"it goes on elsewhere: {'; '.join(moved)}" if moved else None


def place_context(recovered: Recovered, roster: Roster, context: Context) -> list[str]:
    """Everything but parameters and optimizers; returns the generators this machine does not have."""
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
    base = recovered.origin
    through = base if not recovered.records else f"{base} and {recovered.records} records ({recovered.replayed})"
    shapes = {item.tensor.name: item.tensor.shape for item in recovered.index.tensors}
    restored = {name for name, p in roster.parameters.items() if shapes.get(f"model/{name}") == tuple(p.shape)}
    held = {entry.key for entry in recovered.index.content.optimizers}
    items = [_item(name, "parameter", name in restored, through) for name in roster.parameters]
    items += [Item(f"model/{name}", "parameter", "missing", base) for name in _only_in_run(shapes, roster)]
    for key, optimizer in roster.optimizers.items():
        items.append(_item(key, "hyper", key in held, through))
        items += [
            _item(f"{key}/{name}", "optimizer", key in held and name in restored, through)
            for name, p in roster.parameters.items()
            if p in optimizer.state
        ]
        items += [_item(f"{key}/#{text}", "optimizer", key in held, through) for text in unowned(optimizer)]
    derived = set(recovered.index.content.derived)
    kinds: dict[str, Any] = {"buffer": "buffer", "extra": "extra", "state": "state", "rng": "generator"}
    ours = {"buffer": set(roster.buffers()), "extra": set(roster.extra()), "state": set(context.state)}
    for name, (_, _, step) in recovered.folded.items():
        kind, _, rest = name.partition("/")
        placed = rest in ours[kind] if kind in ours else rest not in missing
        status: Status = "restored" if placed else "derived" if rest in derived else "missing"
        items.append(Item(rest, kinds[kind], status, base if step == recovered.index.step else f"record {step}"))
    return items


def _item(name: str, kind: Any, restored: bool, origin: str) -> Item:
    return Item(name, kind, "restored" if restored else "kept", origin if restored else "the program")


def _only_in_run(shapes: dict[str, tuple[int, ...]], roster: Roster) -> list[str]:
    names = {name.removeprefix("model/") for name in shapes if name.startswith("model/")}
    return sorted(names - set(roster.parameters))
