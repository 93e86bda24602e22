"""Brings a program to a step that several writers hold together, whatever part of it each of them held.

Each writer's part is recovered beside the program, by its own base and its own log, and what the program wants of it is
copied box by box; then the next. Optimizer state follows its parameter; hyper-parameters go by the parameters' names.
"""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from everstep.capture.context import Context
from everstep.capture.roster import Roster
from everstep.capture.shards import box_of, like, local
from everstep.errors import Damaged, Mismatch
from everstep.layout import boxes
from everstep.layout.owners import read_from
from everstep.log.inventory import Inventory
from everstep.recover import choose, match
from everstep.recover.ledger import Item, Ledger, refuse
from everstep.recover.onto import place_context
from everstep.recover.place import place_groups
from everstep.recover.recover import Recovered, recover
from everstep.recover.standin import assemble
from everstep.recover.ways import DiskWay
from everstep.store import base
from everstep.store.base import Index
from everstep.store.disk import Disk
from everstep.types import Box, Tensor

Hyper = dict[tuple[str, str], dict[str, Any]]
"""Of each optimizer and parameter, the hyper-parameters of its group."""


@dataclass(slots=True)
class Wanted:
    """A parameter of the program: which box of it is here, and what of that nobody has brought yet."""

    name: str
    parameter: torch.Tensor
    box: Box
    absent: list[Box]
    origins: list[str] = field(default_factory=list)


def onto_shards(
    disk: Disk, held: Sequence[Inventory], step: int, roster: Roster, context: Context, rank: int, *, alone: bool
) -> tuple[Ledger, bool]:
    """The program at `step`, and whether its own writer held exactly what it holds now, so that its log may go on.

    Refused before anything is changed, if the writers do not hold all that the program has. `alone`: the program is all
    there is, so it must have all that they hold.
    """
    began = time.perf_counter()
    wanted = {name: _wanted(name, parameter) for name, parameter in roster.parameters.items()}
    sources = [choose.routes(inventory, step) for inventory in held]
    indexes = [base.load(disk, at, routes[0].base) for at, routes in enumerate(sources)]
    new = rank >= len(held)
    own = 0 if new else rank
    refuse(step, match.shared_differences(indexes, own, roster, context, alone=alone))
    used = _used(step, wanted, indexes, own, _context(roster))
    device = next((local(parameter).device for parameter in roster.parameters.values()), torch.device("cpu"))
    hyper: Hyper = {}
    found: list[Recovered] = []
    for optimizer in roster.optimizers.values():
        optimizer.state.clear()
    for at in used:
        recovered, stand_in, described = _recovered(disk, at, sources[at], device)
        origin = f"writer {at}, {recovered.origin}" + (f" and {recovered.records} records" if recovered.records else "")
        _copy(stand_in, described, roster, wanted, hyper, origin)
        found.append(recovered)
    _complete(step, wanted)
    _place_hyper(roster, hyper)
    ours = _with_parts_of_others(_without_generators(found[0]) if new else found[0], found[1:])
    missing = place_context(ours, roster, context)
    same = not new and _boxes(indexes[rank]) == {name: want.box for name, want in wanted.items()}
    changed = None if same else "the program holds other parts than the run's writer did"
    ledger = Ledger(
        step, indexes[own].step, max(one.records for one in found), found[0].replayed, time.perf_counter() - began,
        sum(one.replay_seconds for one in found), tuple(_items(wanted, roster, ours, missing, new=new)), ours.notes,
        changed,
    )  # fmt: skip
    return ledger, same


def _used(step: int, wanted: dict[str, Wanted], indexes: Sequence[Index], own: int, context: set[str]) -> list[int]:
    """The writers to be read, our own first: together they hold every box, and every buffer and module's state."""
    boxes_of = {name: want.absent for name, want in wanted.items()}
    used, absent = read_from(boxes_of, [_boxes(index) for index in indexes], own)
    if absent:
        name, (box, *_) = next(iter(absent.items()))
        raise Damaged(f"step {step}: no writer holds {name} {box.low}..{box.high}. Nothing was changed.")
    for at, index in enumerate(indexes):
        covered = {name for other in used for name in indexes[other].content.context}
        if (context - covered) & set(index.content.context):
            used.append(at)
    return used


def _context(roster: Roster) -> set[str]:
    """What of the context belongs to the model, and may be with any writer."""
    buffers = {f"buffer/{name}" for name in roster.buffers().keys() - set(roster.derived())}
    return buffers | {f"extra/{name}" for name in roster.extra()}


def _with_parts_of_others(ours: Recovered, others: Sequence[Recovered]) -> Recovered:
    """Buffers and modules' states that our own writer did not have, from the first that had them."""
    context, folded = dict(ours.context), dict(ours.folded)
    for other in others:
        for name, value in other.context.items():
            if name not in context and name.startswith(("buffer/", "extra/")):
                context[name], folded[name] = value, other.folded[name]
    return replace(ours, context=context, folded=folded)


def _boxes(index: Index) -> dict[str, Box]:
    """The parameters that a writer holds a part of, and which."""
    prefix = "model/"
    return {s.tensor.name.removeprefix(prefix): s.tensor.box for s in index.tensors if s.tensor.name.startswith(prefix)}


def _without_generators(recovered: Recovered) -> Recovered:
    """For a rank that was not there before: another's random numbers would be drawn twice."""
    context = {name: value for name, value in recovered.context.items() if not name.startswith("rng/")}
    return replace(recovered, context=context)


def _wanted(name: str, parameter: torch.Tensor) -> Wanted:
    box = box_of(name, parameter)
    return Wanted(name, parameter, box, [box] if boxes.volume(box) else [])


def _recovered(
    disk: Disk, rank: int, routes: Sequence[choose.Route], device: torch.device
) -> tuple[Recovered, Roster, dict[str, Tensor]]:
    """One writer's part at the step, beside the program."""
    built: list[tuple[Roster, Index]] = []

    def build(index: Index, tensors: dict[str, torch.Tensor]) -> Roster:
        built.append((assemble(index, tensors, replay=True, device=device), index))
        return built[-1][0]

    found = recover([DiskWay(disk, rank, route) for route in routes], build)
    stand_in, index = built[-1]
    described = {stored.tensor.name: stored.tensor for stored in index.tensors}
    return found, stand_in, described


def _copy(
    source: Roster, described: dict[str, Tensor], roster: Roster, wanted: dict[str, Wanted], hyper: Hyper, origin: str
) -> None:
    """What the program wants of one writer's part, with its optimizer state."""
    for key, groups in source.groups():
        for at, names in enumerate(groups):
            group = source.optimizers[key].param_groups[at]
            told = {name: value for name, value in group.items() if name != "params"}
            hyper |= {(key, name): told for name in names}
    for name, want in wanted.items():
        theirs = source.parameters.get(name)
        if theirs is None:
            continue
        box = described[f"model/{name}"].box
        parts = [part for absent in want.absent if (part := boxes.intersect(absent, box)) is not None]
        if not parts and boxes.volume(want.box):
            continue
        for part in parts:
            _move(theirs.detach(), box, local(want.parameter).detach(), want.box, part)
        want.absent = [rest for absent in want.absent for rest in boxes.subtract(absent, box)]
        want.origins.append(origin)
        for key, optimizer in roster.optimizers.items():
            if key in source.optimizers and theirs in source.optimizers[key].state:
                mine = optimizer.state.setdefault(want.parameter, {})
                for state, value in source.optimizers[key].state[theirs].items():
                    mine[state] = _state(value, theirs, box, want, mine.get(state), parts)


def _state(value: Any, theirs: torch.Tensor, box: Box, want: Wanted, mine: Any, parts: Sequence[Box]) -> Any:
    """A piece of optimizer state: cut as its parameter is if it has its shape, else the same for all of it."""
    if not isinstance(value, torch.Tensor):
        return value
    if value.shape != theirs.shape or not value.dim():
        return value.clone()
    if not isinstance(mine, torch.Tensor) or local(mine).dtype != value.dtype:
        empty = torch.empty_like(local(want.parameter), dtype=value.dtype, requires_grad=False)
        mine = like(want.parameter, empty)
    for part in parts:
        _move(value, box, local(mine), want.box, part)
    return mine


def _move(source: torch.Tensor, held: Box, target: torch.Tensor, own: Box, part: Box) -> None:
    with torch.no_grad():
        target[boxes.slices(part, own)].copy_(source[boxes.slices(part, held)])


def _complete(step: int, wanted: dict[str, Wanted]) -> None:
    absent = [f"{want.name} {box.low}..{box.high}" for want in wanted.values() for box in want.absent]
    if absent:
        raise Damaged(
            f"step {step}: a base was set aside, and no writer holds {', '.join(absent[:5])}. Resume another step."
        )


def _place_hyper(roster: Roster, hyper: Hyper) -> None:
    """Hyper-parameters of each group, as the group had them in which its parameters were."""
    for key, groups in roster.groups():
        found = []
        for at, names in enumerate(groups):
            told = [hyper[key, name] for name in names if (key, name) in hyper]
            if any(one != told[0] for one in told[1:]):
                raise Mismatch(f"optimizer {key!r}, group {at}: its parameters were in groups that differ in the run.")
            found.append(told[0] if told else {})
        place_groups(found, roster.optimizers[key])


def _items(
    wanted: dict[str, Wanted], roster: Roster, own: Recovered, missing: list[str], *, new: bool
) -> Iterator[Item]:
    for name, want in wanted.items():
        yield Item(name, "parameter", "restored", "; ".join(want.origins))
        for key, optimizer in roster.optimizers.items():
            if want.parameter in optimizer.state:
                yield Item(f"{key}/{name}", "optimizer", "restored", "; ".join(want.origins))
    for key in roster.optimizers:
        yield Item(key, "hyper", "restored", "by the parameters' names")
    kinds: dict[str, Any] = {"buffer": "buffer", "extra": "extra", "state": "state", "rng": "generator"}
    for name, (_, _, step) in own.folded.items():
        kind, _, rest = name.partition("/")
        kept = rest in missing or (new and kind == "rng")
        yield Item(rest, kinds[kind], "kept" if kept else "restored", f"record {step} of {own.origin}")
