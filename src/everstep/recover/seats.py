"""A writer's part at a step, read and replayed in the program's own memory where its tensors belong there in one piece,
scattered over it where they do not, and read beside it where they have to be replayed first. So a state is in memory
once while it is loaded, and is not copied.

What a program does not want of a base is not read. A log is replayed for all of a writer's tensors: its digests are.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, cast

import torch

from everstep.capture.roster import Roster
from everstep.capture.shards import local
from everstep.capture.tensors import TORCH_DTYPES
from everstep.codec import tree
from everstep.errors import Damaged
from everstep.recover import fetch
from everstep.recover.anew import owners
from everstep.recover.choose import Route
from everstep.recover.ferry import Ferry
from everstep.recover.load import load, room
from everstep.recover.parts import Move
from everstep.recover.place import check, place_groups
from everstep.recover.recover import Recovered, recover
from everstep.recover.replay import Folded, blobs
from everstep.recover.rooms import Rooms
from everstep.recover.scatter import Scatter
from everstep.recover.standin import Optimizers, optimizer_of
from everstep.recover.wanted import Wanted
from everstep.recover.ways import DiskWay
from everstep.store.base import Index
from everstep.store.disk import Files
from everstep.types import Local

Scattered = Mapping[str, Scatter]
Wants = Mapping[str, Sequence[Wanted]]
"""By the logical tensor."""


def part(
    disk: Files, rank: int, routes: Sequence[Route], wants: Wants, first: Index, own: Optimizers,
    then: fetch.Then, rooms: Rooms,
) -> tuple[Recovered, Roster, dict[str, Local], Scattered]:  # fmt: skip
    """One writer's part: what it recovered, a stand-in over the memory where that lies, which parts those are, and what
    has been scattered: it is where it belongs, and nothing of it is in the stand-in.

    `first` is the index of the first route's base; `own` are the program's optimizers. What has no place in the program
    lies in `rooms` until the next part is read.
    """
    rooms.begin()
    built: list[tuple[Roster, Index]] = []

    def build(index: Index, tensors: dict[str, torch.Tensor]) -> Roster:
        built.append((_stand_in(index, tensors, own, replay=index.step != routes[0].step), index))
        return built[-1][0]

    def place(index: Index, tensors: dict[str, torch.Tensor], roster: Roster, _ferry: Ferry) -> None:
        if roster in sat:  # a replay has changed what was read
            entry = next(route.base for route in routes if route.base.step == index.step)
            fetch.fetch(disk, rank, entry, index, tensors)
        sat.append(roster)
        _sit(index, tensors, roster)

    def seated(index: Index, route: Route) -> dict[str, fetch.Seat]:
        found = _seats(index, wants, rooms, all_of_it=bool(route.records))
        scattered.clear()
        scattered.update((name, seat) for name, seat in found.items() if isinstance(seat, Scatter))
        return found

    sat: list[Roster] = []
    scattered: dict[str, Scatter] = {}
    ways = [
        DiskWay(disk, rank, route, partial(seated, route=route), first if route is routes[0] else None, then)
        for route in routes
    ]
    if routes[0].records and (known := _context_alone(ways[0], wants)) is not None:
        return known, Roster({}, {}, {}, {}), {}, {}
    found = recover(ways, build, place)
    stand_in, index = built[-1]
    theirs = index.held
    return found, stand_in, {name: theirs[name] for name in stand_in.parameters}, scattered


def expect(disk: Files, rank: int, route: Route, wants: Wants, index: Index) -> None:
    """Let the disk begin with this writer's part, while another's is still being dealt with."""
    needed = _needed(index, wants)
    fetch.expect(disk, rank, route.base, index, lambda stored: stored.tensor.name.removeprefix("model/") in needed)


def reading(route: Route, wants: Wants, index: Index) -> tuple[int, int]:
    """How many bytes of a writer's files are read, and how many they hold. Where there is a log, all of them."""
    held = sum(stored.tensor.nbytes for stored in index.tensors)
    log = sum(record.frame.nbytes for record in route.records)
    needed = _needed(index, wants)
    states = owners(index)
    wanted = sum(
        stored.tensor.nbytes for stored in index.tensors
        if states.get(name := stored.tensor.name, ("", name.removeprefix("model/"), ""))[1] in needed
    )  # fmt: skip
    return held + log if log else wanted, held + log


def _context_alone(way: DiskWay, wants: Wants) -> Recovered | None:
    """What a writer's log says besides updates, where the program wants none of its tensors: nothing is replayed."""
    try:
        if way.index is None or _needed(way.index, wants):
            return None
        seats = partial(_seats, wants=wants, rooms=Rooms())
        index, tensors = load(way.disk, way.rank, way.route.base, seats, way.index)
        folded: Folded = {name: (item, tensors, way.start) for name, item in index.content.context.items()}
        for step, record in way.records():
            if record.head.context:
                small = blobs(record)
                folded.update((name, (item, small, step)) for name, item in record.head.context.items())
    except Damaged:
        return None  # there may be another way, and `recover` tells
    context = {name: tree.decode(item, held.__getitem__) for name, (item, held, _) in folded.items()}
    return Recovered(way.step, context, folded, index, way.name, "nothing to replay", 0.0, way.count, ())


def _seats(index: Index, wants: Wants, rooms: Rooms, *, all_of_it: bool = False) -> dict[str, fetch.Seat]:
    """Where each tensor of a base is read to. Those that are not here are not wanted."""
    theirs, owned = index.held, owners(index)
    shapes = {stored.tensor.name: stored.tensor.box.shape for stored in index.tensors}
    homes: dict[str, Wanted] = {}
    once = Counter(held.logical for held in theirs.values())  # where there are two, it is not known which is taken
    spread: dict[str, tuple[Wanted, list[Move]]] = {}
    found: dict[str, fetch.Seat] = {}
    needed = _needed(index, wants)
    for stored in sorted(index.tensors, key=lambda stored: not stored.tensor.name.startswith("model/")):
        name, dtype = stored.tensor.name, TORCH_DTYPES[stored.tensor.dtype]
        key, owner, state = owned.get(name, ("", name.removeprefix("model/"), ""))
        if owner in theirs and owner not in needed and not all_of_it:
            continue
        seat: fetch.Seat | None = None
        if name == f"model/{owner}":
            for want in wants.get(theirs[owner].logical, ()):
                if want.held.pieces and dtype == local(want.parameter).dtype:
                    seat = want.place(local(want.parameter).detach(), theirs[owner])
                if seat is not None:
                    homes[owner] = want
                    break
        elif owner in homes and shapes[name] == shapes[f"model/{owner}"] and shapes[name]:
            seat = homes[owner].place(local(homes[owner].room(key, state, dtype)), theirs[owner])
        if seat is None and not all_of_it and name == f"model/{owner}":
            logical, held = theirs[owner].logical, theirs[owner]
            takers = [(want, moves) for want in wants.get(logical, ()) if (moves := want.moves(held))]
            if len(takers) == once[logical] == 1 and dtype == local(takers[0][0].parameter).dtype:
                spread[owner] = takers[0]
        if seat is None and owner in spread and shapes[name] == shapes[f"model/{owner}"]:
            want, moves = spread[owner]
            target = want.parameter.detach() if name == f"model/{owner}" else want.room(key, state, dtype)
            seat = Scatter.of(theirs[owner], local(target), want.held, moves)
        if seat is None:  # what is no parameter's outlives this part
            seat = rooms.take(stored.tensor) if owner in theirs else room(stored.tensor)
        found[name] = seat
    return found


def _needed(index: Index, wants: Wants) -> set[str]:
    """The parameters of a writer that have something which the program wants."""
    return {name for name, held in index.held.items() if any(want.meets(held) for want in wants.get(held.logical, ()))}


def _stand_in(index: Index, tensors: Mapping[str, torch.Tensor], own: Optimizers, *, replay: bool) -> Roster:
    """Parameters over the memory they were read to. Without replay an optimizer is only what it holds."""
    parameters = {
        name.removeprefix("model/"): torch.nn.Parameter(tensor, tensor.is_floating_point() or tensor.is_complex())
        for name, tensor in tensors.items() if name.startswith("model/")
    }  # fmt: skip
    optimizers: dict[str, torch.optim.Optimizer] = {}
    for entry in index.content.optimizers:
        if replay:
            optimizers[entry.key] = optimizer_of(entry, parameters, dict(tensors), index.step, own)
            continue
        groups = [
            {
                **tree.decode(group.hyper, tensors.__getitem__),
                "params": [parameters[name] for name in group.parameters if name in parameters],
            }
            for group in entry.groups
        ]
        optimizers[entry.key] = torch.optim.Optimizer(groups, {})
    return Roster(dict(parameters), dict(index.content.aliases), {}, optimizers)


def _sit(index: Index, tensors: Mapping[str, torch.Tensor], roster: Roster) -> None:
    """Hyper-parameters and optimizer state as the base holds them; the state stays where it was read to."""
    for entry in index.content.optimizers:
        optimizer = roster.optimizers[entry.key]
        place_groups([tree.decode(group.hyper, tensors.__getitem__) for group in entry.groups], optimizer)
        optimizer.state.clear()
        for text, held in entry.unowned.items():
            cast("dict[Any, Any]", optimizer.state)[text] = tree.decode(held, tensors.__getitem__)
        for name, held in entry.state.items():
            if name in roster.parameters:
                decoded = tree.decode(held, tensors.__getitem__)
                check(entry.kind, name, decoded, roster.parameters[name])
                optimizer.state[roster.parameters[name]] = decoded
