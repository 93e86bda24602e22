"""A writer's part at a step, read and replayed in the program's own memory where its tensors belong there in one piece,
scattered over it where they do not, and read beside it where they have to be replayed first. So a state is in memory
once while it is loaded, and is not copied.

What a program does not want of a base is not read. A log is replayed for all of a writer's tensors, whose digests it
has, or for the boxes that are wanted, whose digests the ranks add up (`cuts`).
"""

from collections import Counter
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, cast

import torch

from everstep.capture.roster import Roster
from everstep.capture.shards import local
from everstep.capture.tensors import TORCH_DTYPES
from everstep.codec import tree
from everstep.errors import Damaged
from everstep.recover import cuts, fetch
from everstep.recover.anew import owners
from everstep.recover.choose import Route
from everstep.recover.cuts import Claim, Said, Wish
from everstep.recover.ferry import Ferry
from everstep.recover.load import load, room
from everstep.recover.parts import Move
from everstep.recover.place import check, place_groups
from everstep.recover.pump import Course, Pump
from everstep.recover.recover import Recovered, recover
from everstep.recover.replay import Cut, Folded, blobs
from everstep.recover.rooms import Rooms
from everstep.recover.scatter import Scatter
from everstep.recover.standin import Optimizers, optimizer_of
from everstep.recover.stretches import Seat
from everstep.recover.wanted import Wanted
from everstep.recover.ways import DiskWay
from everstep.store import names
from everstep.store.base import Index, Stored
from everstep.store.disk import Files
from everstep.types import Local

Scattered = Mapping[str, Scatter]
Wants = Mapping[str, Sequence[Wanted]]
"""By the logical tensor."""
Filled = dict[str, Seat]
"""Where each tensor of a base was read to."""


@dataclass(frozen=True, slots=True)
class Part:
    """What a writer's part recovered, a stand-in over the memory where that lies, which parts those are, and what has
    been scattered: it is where it belongs, and nothing of it is in the stand-in."""

    recovered: Recovered
    stand_in: Roster
    theirs: dict[str, Local]
    scattered: Scattered
    claims: Sequence[Claim] = ()
    """Where only some boxes were replayed: what the other ranks must help to prove."""


def part(
    disk: Files, rank: int, routes: Sequence[Route], wants: Wants, first: Index, own: Optimizers,
    pump: Pump | None, rooms: Rooms, wish: Wish | None = None, filled: Filled | None = None,
) -> Part:  # fmt: skip
    """One writer's part. `first` is the index of the first route's base; `own` are the program's optimizers. What has
    no place in the program lies in `rooms` until the next part is read. With a `wish` only its boxes are replayed.
    `filled`: where the tensors of that base have been read to already.
    """
    rooms.begin()
    seating = _Seating(disk, rank, routes, wants, first, own, rooms, wish, first, filled)
    ways = [
        DiskWay(disk, rank, route, partial(seating.seats, route), known, pump, rooms.pages)
        for route, known in zip(routes, [first, *[None] * (len(routes) - 1)], strict=True)
    ]
    ways[0] = replace(ways[0], fetched=filled is not None)
    if routes[0].records and (known := _context_alone(ways[0], wants)) is not None:
        return Part(known, Roster({}, {}, {}, {}), {}, {})
    found = recover(ways, seating.stand_in, seating.place, cut=seating.cut)
    stand_in, narrow = seating.built[-1], seating.narrow(found.index)
    theirs = {name: narrow.held[name] for name in stand_in.parameters}
    if narrow is not found.index:
        found = replace(found, replayed=found.replayed + cuts.OF_PARTS)
        if found.step not in {claim.said.step for claim in seating.claims}:
            seating.noted(found.step, "", None)  # no record had digests of it: nothing is proved
    return Part(found, stand_in, theirs, seating.scattered, seating.claims)


@dataclass(slots=True)
class _Seating:
    """Where one writer's tensors go, by whichever route; with a `wish`, its boxes of them."""

    disk: Files
    rank: int
    routes: Sequence[Route]
    wants: Wants
    first: Index
    own: Optimizers
    rooms: Rooms
    wish: Wish | None
    index: Index
    """Of the base that was read."""
    filled: Filled | None = None
    built: list[Roster] = field(default_factory=list)
    scattered: dict[str, Scatter] = field(default_factory=dict)
    claims: list[Claim] = field(default_factory=list)
    _narrow: dict[int, Index] = field(default_factory=dict)
    _seats: dict[str, Seat] = field(default_factory=dict)
    _placed: list[Roster] = field(default_factory=list)

    def narrow(self, index: Index) -> Index:
        """What is wanted of a base; the index itself if that is not to be cut, or not as the first one is."""
        if self.wish is None or index.held != self.first.held:
            return index
        if index.step not in self._narrow:
            self._narrow[index.step] = cuts.narrowed(index, self.wish)
        return self._narrow[index.step]

    def cut(self, index: Index) -> Cut | None:
        """What a replay takes of the records."""
        narrow = self.narrow(index)
        return None if narrow is index else Cut(cuts.slices(index, narrow), self.noted)

    def noted(self, step: int, parameters: str, state: str | None) -> None:
        """A record has digests of the state that is replayed, and of the rest."""
        said = Said(step, parameters, state)
        self.claims.append(cuts.claim(self.rank, said, self.index, self.narrow(self.index), self.built[-1]))

    def seats(self, route: Route, index: Index) -> Filled:
        found = self.filled
        if found is None or route is not self.routes[0]:
            found = planned(self.narrow(index), self.wants, self.rooms, all_of_it=bool(route.records))
        self.scattered = {name: seat for name, seat in found.items() if isinstance(seat, Scatter)}
        self._seats = found
        return cuts.through(index, self.narrow(index), found)

    def stand_in(self, index: Index, tensors: dict[str, torch.Tensor]) -> Roster:
        """A stand-in over the memory that was read to."""
        tensors.update((name, seat) for name, seat in self._seats.items() if isinstance(seat, torch.Tensor))
        replay = index.step != self.routes[0].step
        self.index = index
        self.built.append(_stand_in(self.narrow(index), tensors, self.own, replay=replay))
        return self.built[-1]

    def place(self, index: Index, tensors: dict[str, torch.Tensor], roster: Roster, _ferry: Ferry) -> None:
        if roster in self._placed:  # a replay has changed what was read
            entry = next(route.base for route in self.routes if route.base.step == index.step)
            seats = cuts.through(index, self.narrow(index), self._seats)
            fetch.fetch(self.disk, self.rank, entry, index, seats)
        self._placed.append(roster)
        _sit(self.narrow(index), tensors, roster)


def course(rank: int, route: Route, wants: Wants, index: Index, *, together: bool) -> Course:
    """What will be read of a writer's base. `together`: all who load are on this host, so they want the rest of each
    tensor of which the program wants something."""
    path = names.tensors(rank, route.base.step, route.base.epoch)
    needed = _needed(index, wants)
    if together and needed:
        needed = {name for name, held in index.held.items() if held.logical in wants}
    return Course.of(path, index, index.tensors if route.records else _of(index, needed))


def reading(route: Route, wants: Wants, index: Index) -> tuple[int, int]:
    """How many bytes of a writer's files are read, and how many they hold. Where there is a log, all of them."""
    held = sum(stored.tensor.nbytes for stored in index.tensors)
    log = sum(record.frame.nbytes for record in route.records)
    wanted = sum(stored.tensor.nbytes for stored in _of(index, _needed(index, wants)))
    return held + log if log else wanted, held + log


def _of(index: Index, parameters: Container[str]) -> list[Stored]:
    """These parameters, with their state."""
    states = owners(index)
    return [
        stored for stored in index.tensors
        if states.get(name := stored.tensor.name, ("", name.removeprefix("model/"), ""))[1] in parameters
    ]  # fmt: skip


def _context_alone(way: DiskWay, wants: Wants) -> Recovered | None:
    """What a writer's log says besides updates, where the program wants none of its tensors: nothing is replayed."""
    try:
        if way.index is None or _needed(way.index, wants):
            return None
        seats = partial(planned, wants=wants, rooms=Rooms())
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


def planned(index: Index, wants: Wants, rooms: Rooms, *, all_of_it: bool = False) -> Filled:
    """Where each tensor of a base is read to. Those that are not here are not wanted."""
    theirs, owned = index.held, owners(index)
    shapes = {stored.tensor.name: stored.tensor.box.shape for stored in index.tensors}
    homes: dict[str, Wanted] = {}
    once = Counter(held.logical for held in theirs.values())  # where there are two, it is not known which is taken
    spread: dict[str, tuple[Wanted, list[Move]]] = {}
    found: dict[str, Seat] = {}
    needed = _needed(index, wants)
    for stored in sorted(index.tensors, key=lambda stored: not stored.tensor.name.startswith("model/")):
        name, dtype = stored.tensor.name, TORCH_DTYPES[stored.tensor.dtype]
        key, owner, state = owned.get(name, ("", name.removeprefix("model/"), ""))
        if owner in theirs and owner not in needed and not all_of_it:
            continue
        seat: Seat | None = None
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
