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
from everstep.capture.tensors import DTYPES
from everstep.errors import Damaged, Mismatch
from everstep.layout import boxes
from everstep.log.inventory import Inventory
from everstep.recover import choose
from everstep.recover.ledger import Item, Ledger
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
    disk: Disk, held: Sequence[Inventory], step: int, roster: Roster, context: Context, rank: int
) -> tuple[Ledger, bool]:
    """The program at `step`, and whether its own writer held exactly what it holds now, so that its log may go on."""
    began = time.perf_counter()
    wanted = {name: _wanted(name, parameter) for name, parameter in roster.parameters.items()}
    sources = [choose.routes(inventory, step) for inventory in held]
    indexes = [base.load(disk, at, routes[0].base) for at, routes in enumerate(sources)]
    _refuse(step, wanted, indexes)
    own = rank if rank < len(held) else 0
    device = next((local(parameter).device for parameter in roster.parameters.values()), torch.device("cpu"))
    hyper: Hyper = {}
    records, replayed, spent = 0, "nothing to replay", 0.0
    for at in [own, *(other for other in range(len(held)) if other != own)]:
        if at != own and not _needed(wanted, indexes[at]):
            continue
        recovered, stand_in, described = _recovered(disk, at, sources[at], device)
        origin = f"writer {at}, {recovered.origin}" + (f" and {recovered.records} records" if recovered.records else "")
        _copy(stand_in, described, roster, wanted, hyper, origin)
        records, replayed = max(records, recovered.records), recovered.replayed
        spent += recovered.replay_seconds
        if at == own:
            ours = recovered if rank < len(held) else _without_generators(recovered)
    _complete(step, wanted)
    _place_hyper(roster, hyper)
    missing = place_context(ours, roster, context)
    same = len(held) > rank and _same(indexes[rank], wanted)
    items = tuple(_items(wanted, roster, ours, missing, new=rank >= len(held)))
    changed = None if same else "the program holds other parts than the run's writer did"
    ledger = Ledger(
        step, indexes[own].step, records, replayed, time.perf_counter() - began, spent, items, ours.notes, changed,
    )  # fmt: skip
    return ledger, same


def _without_generators(recovered: Recovered) -> Recovered:
    """For a rank that was not there before: another's random numbers would be drawn twice."""
    context = {name: value for name, value in recovered.context.items() if not name.startswith("rng/")}
    return replace(recovered, context=context)


def _wanted(name: str, parameter: torch.Tensor) -> Wanted:
    box = box_of(name, parameter)
    return Wanted(name, parameter, box, [box] if boxes.volume(box) else [])


def _refuse(step: int, wanted: dict[str, Wanted], indexes: Sequence[Index]) -> None:
    """Mismatch with everything that the program has and no writer holds, or holds otherwise."""
    run: dict[str, Tensor] = {}
    for index in indexes:
        run |= {stored.tensor.name: stored.tensor for stored in index.tensors}
    faults = []
    for name, want in wanted.items():
        told = run.get(f"model/{name}")
        shape, dtype = tuple(want.parameter.shape), DTYPES.get(want.parameter.dtype)
        if told is None:
            faults.append(f"parameter {name!r}: only in the program")
        elif (told.shape, told.dtype) != (shape, dtype):
            faults.append(f"parameter {name!r}: {told.dtype} {told.shape} in the run, {dtype} {shape} in the program")
    if faults:
        shown = "\n  ".join(faults[:50])
        raise Mismatch(f"step {step}: run and program do not hold the same things:\n  {shown}", tuple(faults))


def _needed(wanted: dict[str, Wanted], index: Index) -> bool:
    """Whether this writer holds something that is still absent."""
    for stored in index.tensors:
        want = (
            wanted.get(stored.tensor.name.removeprefix("model/")) if stored.tensor.name.startswith("model/") else None
        )
        if want is not None and any(boxes.intersect(box, stored.tensor.box) for box in want.absent):
            return True
    return False


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
        target[_inside(part, own)].copy_(source[_inside(part, held)])


def _inside(part: Box, box: Box) -> tuple[slice, ...]:
    return tuple(slice(lo - first, h - first) for lo, h, first in zip(part.low, part.high, box.low, strict=True))


def _complete(step: int, wanted: dict[str, Wanted]) -> None:
    absent = [f"{want.name} {box.low}..{box.high}" for want in wanted.values() for box in want.absent]
    if absent:
        raise Damaged(f"step {step}: no writer holds {', '.join(absent[:5])}. Nothing is handed out.")


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


def _same(index: Index, wanted: dict[str, Wanted]) -> bool:
    held = {
        s.tensor.name.removeprefix("model/"): s.tensor.box for s in index.tensors if s.tensor.name.startswith("model/")
    }
    return held == {name: want.box for name, want in wanted.items()}


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
