"""Brings a program to a step that several writers hold together, whatever part of it each of them held.

Each writer's part is recovered by its own base and its own log, in the program's memory where it belongs there in one
piece; what lies beside is copied box by box; then the next. Optimizer state follows its parameter; hyper-parameters go
by the parameters' names.
"""

import os
import time
from collections.abc import Container, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeGuard

import torch

from everstep.capture import rng
from everstep.capture.context import Context
from everstep.capture.roster import Roster
from everstep.capture.shards import held_of, local
from everstep.company import Company
from everstep.errors import Damaged, Mismatch
from everstep.layout.owners import order
from everstep.recover import anew, choose, kin, match, seats
from everstep.recover.coming import Coming
from everstep.recover.cuts import Claim, Wish, agree
from everstep.recover.cuts import proved as proved_together
from everstep.recover.diverged import refuse_diverged
from everstep.recover.exchange import passed_on
from everstep.recover.ledger import Ledger, refuse
from everstep.recover.onto import place_context
from everstep.recover.parts import Move, copy
from everstep.recover.place import place_groups
from everstep.recover.placed import Brought, known, prove
from everstep.recover.pump import Pump
from everstep.recover.recover import Recovered, recover
from everstep.recover.reduce import Reduction, fit, in_order
from everstep.recover.rooms import Rooms
from everstep.recover.shared import items_of
from everstep.recover.standin import Optimizers, assemble
from everstep.recover.turns import turns_of
from everstep.recover.unowned import Unowned
from everstep.recover.wanted import Wanted
from everstep.recover.ways import DiskWay
from everstep.recover.writers import Writers
from everstep.store.base import Index
from everstep.store.disk import Files
from everstep.types import Local, Pair
from everstep.uncollected import uncollected

NOT_BY_PARTS = (
    "what the ranks replayed, each its own parts, did not add up to the digests of the log: every writer's part was "
    "replayed whole instead."
)
Hyper = dict[tuple[str, str], dict[str, Any]]
"""Of each optimizer and parameter, the hyper-parameters of its group."""


@dataclass(frozen=True, slots=True)
class _Part:
    """A writer's part at the step: a stand-in that holds it, what of which tensors that is, and its digests."""

    writer: int
    source: Roster
    theirs: dict[str, Local]
    digests: dict[str, Pair]
    scattered: seats.Scattered
    """What is in the program already, and not in the stand-in."""


@dataclass(slots=True)
class _Gathered:
    """What came of the writers' parts, besides what is in the program now."""

    hyper: Hyper = field(default_factory=dict)
    found: dict[int, Recovered] = field(default_factory=dict)
    brought: list[Brought] = field(default_factory=list)
    claims: list[Claim] = field(default_factory=list)
    unowned: Unowned = field(default_factory=Unowned)


def onto_shards(
    writers: Writers, roster: Roster, context: Context, ranks: Company, *, alone: bool, strict: bool = True
) -> tuple[Ledger, bool]:
    """The program at the step, and whether its own writer held exactly what it holds now, so that its log may go on.

    Refused before anything is changed, if the writers do not hold all that the program has. `alone`: the program is all
    there is, so it must have all that they hold. If not `strict`, what both hold is restored, and the rest stays.
    """
    with uncollected(), ExitStack() as pumps:
        return _onto_shards(writers, roster, context, ranks, pumps, alone=alone, strict=strict)


def _onto_shards(
    writers: Writers, roster: Roster, context: Context, ranks: Company, pumps: ExitStack, *, alone: bool, strict: bool
) -> tuple[Ledger, bool]:
    rank, step, began = ranks.rank, writers.step, time.perf_counter()
    wanted = {name: _wanted(name, parameter, roster) for name, parameter in roster.parameters.items()}
    goes_on = kin.own(writers, rank, context.place, {name: want.held for name, want in wanted.items()})
    new, asked = goes_on is None, order(rank, ranks.world, len(writers), goes_on)
    own = asked[0]
    reductions = fit(wanted, writers, asked)
    used, turns, absent = turns_of(writers, asked, wanted, roster)
    pump, pumped = None, turns
    together = ranks.world == 1 or os.environ.get("LOCAL_WORLD_SIZE") == str(ranks.world)
    if together:  # on one host nobody passes files on
        pump = pumps.enter_context(_pump(writers.disk, writers, turns, _by_logical(wanted), together=True))
    if alone:
        list(map(writers.index, asked))  # what the program lacks is a difference as well
    refuse_diverged(writers.known)
    differs = match.shared_differences(writers.known, writers.index(own), roster, context, alone=alone)
    both, optimizers = match.in_both(writers.known, roster)
    immovable = anew.differences(writers.known, roster, optimizers)
    refuse(step, [*differs, *immovable] if strict else immovable)
    if not wanted.keys() <= both:
        wanted = {name: want for name, want in wanted.items() if name in both}
        reductions = [reduction for reduction in reductions if reduction.want.name in both]
        used, turns, absent = turns_of(writers, asked, wanted, roster)
    if absent:
        name, (box, *_) = next(iter(absent.items()))
        raise Damaged(f"step {step}: no writer holds {name} {box.low}..{box.high}. Nothing was changed.")
    device = next((local(parameter).device for parameter in roster.parameters.values()), torch.device("cpu"))
    wants = _by_logical(wanted)
    reads = {at: seats.reading(writers.routes(at)[0], wants, writers.index(at)) for at in used}
    notes: tuple[str, ...] = ()
    with passed_on(writers.disk, ranks, reads) as files:
        turns = in_order(turns, [writers.index(at) for at in turns], reductions)
        if pump is None or files is not writers.disk or turns != pumped:
            pumps.close()
            pump = pumps.enter_context(_pump(files, writers, turns, wants, together=together))
        wishes = agree(writers, turns, wanted.values(), ranks, can=device.type == "cpu" and not reductions)
        gather = partial(_gather, writers, turns, roster, wanted, wants, reductions, optimizers, device, pump)
        gathered = gather(files, wishes)
        if not proved_together(gathered.claims, ranks):
            notes = (NOT_BY_PARTS,)
            for want in wanted.values():
                want.forget()
            gathered = gather(writers.disk, {})
        _complete(step, wanted)
        proved = prove(step, gathered.brought, ranks)  # the ranks meet there: all of them have read
    hyper, found, unowned = gathered.hyper, gathered.found, gathered.unowned
    _place_hyper(roster, hyper, optimizers)
    unowned.place(roster, optimizers)
    holds = {name: want.held for name, want in wanted.items()}
    same = goes_on == rank and not differs and writers.index(rank).held == holds
    wanted |= {reduction.want.name: reduction.finish(roster.optimizers.values()) for reduction in reductions}
    first, *others = (found[at] for at in used)
    ours = _with_parts_of_others(_without_generators(first) if new else first, others)
    missing = place_context(ours, roster, context)
    if new:
        rng.derive(writers.index(own).run, step, rank if context.place is None else context.place.rank)
    what = "things than the run" if differs else "parts than the run's writer did"
    changed = None if same else f"the program holds other {what}"
    parts = {at: found[at] for at in used}
    items = items_of(wanted, roster, context, ours, parts, missing, optimizers, new=new, alone=alone)
    ledger = Ledger(
        step, writers.index(own).step, max(one.records for one in found.values()), first.replayed,
        time.perf_counter() - began, sum(one.replay_seconds for one in found.values()), tuple(items),
        (*ours.notes, *notes), changed, proved,
    )  # fmt: skip
    return ledger, same


def _gather(
    writers: Writers, turns: Sequence[int], roster: Roster, wanted: dict[str, Wanted], wants: seats.Wants,
    reductions: Sequence[Reduction], optimizers: Container[str], device: torch.device, pump: Pump, files: Files,
    wishes: Mapping[int, Wish],
) -> _Gathered:  # fmt: skip
    """Read the writers' parts one after the other, replay them, of some only what is wished for, and take that."""
    done, rooms = _Gathered(), Rooms()
    summed = {id(reduction.each.held): reduction for reduction in reductions}
    for optimizer in roster.optimizers.values():
        optimizer.state.clear()
    ahead = turns if device.type == "cpu" and not reductions else ()
    with Coming(files, writers, ahead, wants, pump) as coming:
        for at in turns:
            routes, index = writers.routes(at), writers.index(at)
            read = coming.take(at)
            one = (
                seats.part(files, at, routes, wants, index, roster.optimizers, pump, rooms, wishes.get(at), read)
                if device.type == "cpu"
                else _beside(files, at, routes, device, roster.optimizers, pump)
            )
            recovered, stand_in, theirs = one.recovered, one.stand_in, one.theirs
            log = f" and {recovered.records} records" if recovered.records else ""
            origin = f"writer {at}, {recovered.origin}{log}"
            part = _Part(at, stand_in, theirs, known(recovered.digests, *_tensors(stand_in, theirs)), one.scattered)
            for found in _copy(part, roster, wanted, done.hyper, origin, optimizers):
                if (reduction := summed.get(id(found.ours))) is not None:
                    reduction.add(found)  # the next version takes its place
                else:
                    done.brought.append(found)
            done.unowned.add(stand_in)
            done.found[at] = recovered
            done.claims += one.claims
    return done


def _by_logical(wanted: Mapping[str, Wanted]) -> dict[str, list[Wanted]]:
    found: dict[str, list[Wanted]] = {}
    for want in wanted.values():
        found.setdefault(want.held.logical, []).append(want)
    return found


def _pump(files: Files, writers: Writers, turns: Sequence[int], wants: seats.Wants, *, together: bool) -> Pump:
    routes = ((at, writers.routes(at)[0], writers.index(at)) for at in turns)
    return Pump(files, [seats.course(at, route, wants, index, together=together) for at, route, index in routes])


def _with_parts_of_others(ours: Recovered, others: Sequence[Recovered]) -> Recovered:
    """Buffers and modules' states that our own writer did not have, from the first that had them."""
    context, folded = dict(ours.context), dict(ours.folded)
    for other in others:
        for name, value in other.context.items():
            if name not in context and name.startswith(("buffer/", "extra/")):
                context[name], folded[name] = value, other.folded[name]
    return replace(ours, context=context, folded=folded)


def _without_generators(recovered: Recovered) -> Recovered:
    """For a rank that was not there before: another's random numbers would be drawn twice."""
    context = {name: value for name, value in recovered.context.items() if not name.startswith("rng/")}
    return replace(recovered, context=context)


def _wanted(name: str, parameter: torch.Tensor, roster: Roster) -> Wanted:
    held = held_of(name, parameter, roster.layout)
    return Wanted(name, parameter, held, [piece.box for piece in held.pieces])


def _beside(
    disk: Files, rank: int, routes: Sequence[choose.Route], device: torch.device, own: Optimizers, pump: Pump
) -> seats.Part:
    """One writer's part at the step, beside the program, on its device: there its optimizer rounds as it did."""
    built: list[tuple[Roster, Index]] = []

    def build(index: Index, tensors: dict[str, torch.Tensor]) -> Roster:
        built.append((assemble(index, tensors, replay=True, device=device, own=own), index))
        return built[-1][0]

    found = recover([DiskWay(disk, rank, route, pump=pump) for route in routes], build)
    stand_in, index = built[-1]
    return seats.Part(found, stand_in, index.held, {})


def _tensors(source: Roster, theirs: dict[str, Local]) -> tuple[dict[str, torch.Tensor], dict[str, Local]]:
    """What a writer's part has that is cut as its parameter is, by the names that a base gives it."""
    tensors = {f"model/{name}": parameter.detach() for name, parameter in source.parameters.items()}
    layout = {f"model/{name}": theirs[name] for name in source.parameters}
    for key, optimizer in source.optimizers.items():
        for name, parameter in source.parameters.items():
            for state, value in optimizer.state.get(parameter, {}).items():
                if _cut_alike(value, parameter):
                    tensors[f"optimizer/{key}/{name}/{state}"] = value
                    layout[f"optimizer/{key}/{name}/{state}"] = theirs[name]
    return tensors, layout


def _copy(
    part: _Part, roster: Roster, wanted: dict[str, Wanted], hyper: Hyper, origin: str, optimizers: Container[str]
) -> Iterator[Brought]:
    """What the program wants of one writer's part, with its state in these optimizers."""
    source, theirs = part.source, part.theirs
    for key, groups in source.groups():
        for at, names in enumerate(groups):
            group = source.optimizers[key].param_groups[at]
            told = {name: value for name, value in group.items() if name != "params"}
            hyper |= {(key, theirs[name].logical): told for name in names}
    named: dict[str, list[str]] = {}
    for name, held in theirs.items():
        named.setdefault(held.logical, []).append(name)
    for want in wanted.values():
        for name in named.get(want.held.logical, ()):
            moves = want.take(theirs[name])
            if moves or not want.held.pieces:
                want.origins.append(origin)
                yield from _bring(part, name, roster, want, moves, optimizers)


def _bring(
    part: _Part, name: str, roster: Roster, want: Wanted, moves: Sequence[Move], optimizers: Container[str]
) -> Iterator[Brought]:
    """One tensor's part, with its optimizer state."""
    parameter = part.source.parameters[name]
    yield _move(part, f"model/{name}", parameter.detach(), local(want.parameter).detach(), name, want, moves)
    for key, optimizer in roster.optimizers.items():
        if key in optimizers and key in part.source.optimizers and parameter in part.source.optimizers[key].state:
            mine = optimizer.state.setdefault(want.parameter, {})
            for state, value in part.source.optimizers[key].state[parameter].items():
                if _cut_alike(value, parameter):
                    mine[state] = room = want.room(key, state, value.dtype)
                    yield _move(part, f"optimizer/{key}/{name}/{state}", value, local(room), name, want, moves)
                else:  # the same for all of it
                    if isinstance(value, torch.Tensor) and value.numel() > 1 and part.theirs[name] != want.held:
                        told = anew.uncut(key, state, name, tuple(value.shape))
                        raise Mismatch(f"{told}. The program has been changed, and is not to be used.")
                    mine[state] = value.clone() if isinstance(value, torch.Tensor) else value


def _cut_alike(value: Any, parameter: torch.Tensor) -> TypeGuard[torch.Tensor]:
    """Whether a piece of optimizer state is cut as its parameter is."""
    return isinstance(value, torch.Tensor) and value.shape == parameter.shape and bool(value.dim())


def _move(
    part: _Part, full: str, source: torch.Tensor, target: torch.Tensor, name: str, want: Wanted, moves: Sequence[Move]
) -> Brought:
    theirs, ours = part.theirs[name], want.held
    laid = part.scattered.get(full)
    copied = laid.doubted if laid is not None else copy(source, theirs, target, ours, moves)
    taken = tuple(move.box for move in moves)
    return Brought(part.writer, full, theirs, part.digests[full], taken, target, ours, copied)


def _complete(step: int, wanted: dict[str, Wanted]) -> None:
    absent = [f"{want.name} {box.low}..{box.high}" for want in wanted.values() for box in want.absent]
    if absent:
        raise Damaged(
            f"step {step}: a base was set aside, and no writer holds {', '.join(absent[:5])}. Resume another step."
        )


def _place_hyper(roster: Roster, hyper: Hyper, optimizers: Container[str]) -> None:
    """Hyper-parameters of each group, as the group had them in which its parameters were."""
    for key, groups in roster.groups():
        if key not in optimizers:
            continue
        found = []
        for at, names in enumerate(groups):
            told = [hyper[key, name] for name in map(roster.logical, names) if (key, name) in hyper]
            if any(one != told[0] for one in told[1:]):
                raise Mismatch(f"{anew.torn_apart(key, at)}. The program has been changed, and is not to be used.")
            found.append(told[0] if told else {})
        place_groups(found, roster.optimizers[key])
