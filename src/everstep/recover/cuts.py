"""Replaying of a writer's part only what this rank wants, where an optimizer treats each element by itself.

A rank that goes from rows to columns wants a little of every writer: were it to replay all that they held, every rank
would replay the whole model. So each replays its own boxes, and they prove it together: a record's digest is of all
that its writer held, a box adds its part to that, and the ranks' parts must add up to it (`placed` does the same for
where things were put). Should they not, because rounding depended on the cut after all, everything is replayed whole.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import msgspec
import torch

from everstep.capture.digests import digest, digest_at, total
from everstep.capture.roster import ELEMENTWISE, Roster
from everstep.company import Company, meet
from everstep.layout import boxes
from everstep.recover.anew import owners
from everstep.recover.parts import Move
from everstep.recover.placed import RANKS_MAX
from everstep.recover.scatter import Scatter
from everstep.recover.stretches import Seat
from everstep.recover.wanted import Wanted
from everstep.recover.writers import Writers
from everstep.store import base
from everstep.store.base import Index, Stored
from everstep.types import DTYPE_BYTES, Box, Local, Pair, boxed, whole

Wish = Mapping[str, Box]
"""Of a writer's parameters, by its names: the box that is wanted. Those that are not here are not wanted."""
LARGEST = 0.75
"""A rank that wants more of a writer than this part replays all of it, and proves it by itself."""
OF_PARTS = ", of the parts that are here"
"""Said with what replayed them."""
RIGHT = "right"


class Said(msgspec.Struct, frozen=True, array_like=True):
    """What a record says of the state after a step: digests of the parameters, and perhaps of all."""

    step: int
    parameters: str
    state: str | None


class Claim(msgspec.Struct, frozen=True, array_like=True):
    """What a rank replayed of a writer: the parts of its digests, by tensor and box; None for what has no boxes."""

    writer: int
    said: Said
    parts: list[tuple[str, Box | None, Pair]]


def agree(
    writers: Writers, turns: Sequence[int], wants: Iterable[Wanted], ranks: Company, *, can: bool
) -> dict[int, Wish]:
    """Of which writers which boxes are replayed, by all ranks or by none: only together can they prove it. Every rank
    must ask; if one says that it cannot, none does."""
    if not 1 < ranks.world <= RANKS_MAX:
        return {}
    planned = _plan(writers, turns, wants) if can else {}
    shares = {at: 1.0 if wish is None else _share(writers.index(at), wish) for at, wish in planned.items()}
    told = meet(ranks, "cuts", _decided, msgspec.json.encode(shares if can else None).decode())
    return {at: wish for at in msgspec.json.decode(told, type=list[int]) if (wish := planned.get(at))}


def _decided(said: list[str]) -> str:
    shares: dict[int, list[float]] = {}
    for text in said:
        told = msgspec.json.decode(text, type=dict[int, float] | None)
        if told is None:
            return "[]"
        for at, share in told.items():
            shares.setdefault(at, []).append(share)
    return msgspec.json.encode([at for at, found in shares.items() if max(found) <= LARGEST]).decode()


def _plan(writers: Writers, turns: Sequence[int], wants: Iterable[Wanted]) -> dict[int, Wish | None]:
    """What this rank will want of each writer, in turn; None where that cannot be cut out."""
    left: dict[str, list[Wanted]] = {}
    for want in wants:
        left.setdefault(want.held.logical, []).append(replace(want))
    found = {at: _wish(writers.index(at), left) for at in turns}
    return {at: wish if _can(writers, at) else None for at, wish in found.items()}


def _can(writers: Writers, at: int) -> bool:
    """Whether there is a log of optimizers whose rounding does not depend on where a tensor ends. The CPU's fused
    kernels round the end of one differently."""
    index, kinds = writers.index(at), {f"torch.optim.{name.lower()}.{name}" for name in ELEMENTWISE}
    entries = index.content.optimizers
    fused = any(group.hyper.get("fused") for entry in entries for group in entry.groups)
    on_cpu = not index.content.versions.get("cuda")
    return bool(writers.routes(at)[0].records) and on_cpu and not fused and all(e.kind in kinds for e in entries)


def _wish(index: Index, left: Mapping[str, Sequence[Wanted]]) -> Wish | None:
    found: dict[str, Box] = {}
    plain = True
    for name, held in index.held.items():
        wanted = {move.box for want in left.get(held.logical, ()) for move in want.take(held)}
        if len(wanted) > 1 or held.versions or (held.pieces and not _in_one_box(held)):
            plain = False
        for box in wanted or (() if held.pieces else (whole(held.shape),)):  # what has no elements is everyone's
            found[name] = box
    return found if plain else None


def _in_one_box(held: Local) -> bool:
    return len(held.pieces) == 1 and held == boxed(held.logical, held.logical_shape, held.pieces[0].box)


def _share(index: Index, wish: Wish) -> float:
    """How much of a writer's parameters that is."""
    held = sum(boxes.volume(piece.box) for local in index.held.values() for piece in local.pieces)
    return sum(map(boxes.volume, wish.values())) / max(1, held)


def narrowed(index: Index, wish: Wish) -> Index:
    """As if the writer had held these boxes alone."""
    content, away = base.shared(index.content, frozenset(wish), [stored.tensor.name for stored in index.tensors])
    layout = {name: boxed(index.held[name].logical, index.held[name].logical_shape, box) for name, box in wish.items()}
    owned = owners(index)
    tensors = []
    for stored in index.tensors:
        name = _owner(stored.tensor.name, owned)
        if stored.tensor.name not in away:
            alike = name in wish and stored.tensor.box.shape == index.held[name].shape
            tensors.append(_narrowed(stored, wish[name]) if alike else stored)
    content = msgspec.structs.replace(content, layout=layout)
    return msgspec.structs.replace(index, tensors=tuple(tensors), content=content)


def _narrowed(stored: Stored, box: Box) -> Stored:
    nbytes = boxes.volume(box) * DTYPE_BYTES[stored.tensor.dtype]
    told = msgspec.structs.replace(stored.tensor, shape=box.shape, box=whole(box.shape), nbytes=nbytes)
    return msgspec.structs.replace(stored, tensor=told)


def _owner(name: str, owned: Mapping[str, tuple[str, str, str]]) -> str:
    """The parameter that a tensor is, or belongs to."""
    return owned[name][1] if name in owned else name.removeprefix("model/")


def through(index: Index, narrow: Index, seats: Mapping[str, Seat]) -> dict[str, Seat]:
    """How the writer's tensors are read to seats for the boxes of them."""
    stored = {held.tensor.name: held.tensor.box.shape for held in index.tensors}
    owned, found = owners(index), dict(seats)
    for held in narrow.tensors:
        name = held.tensor.name
        if held.tensor.box.shape != stored[name]:
            owner, seat = _owner(name, owned), seats[name]
            theirs, ours = index.held[owner], narrow.held[owner]
            move = Move(theirs.pieces[0], ours.pieces[0], ours.pieces[0].box)
            assert isinstance(seat, torch.Tensor)
            laid = Scatter.of(theirs, seat, ours, [move])
            assert laid is not None
            found[name] = laid
    return found


def slices(index: Index, narrow: Index) -> dict[str, tuple[slice, ...]]:
    """Of each parameter that is wanted, where in the writer's it is."""
    return {name: boxes.slices(_box(held), _box(index.held[name])) for name, held in narrow.held.items()}


def _box(held: Local) -> Box:
    return held.pieces[0].box if held.pieces else whole(held.shape)


def claim(writer: int, said: Said, index: Index, narrow: Index, stand_in: Roster) -> Claim:
    """The parts that the replayed boxes, as they are now, add to the writer's digests."""
    parts: list[tuple[str, Box | None, Pair]] = []
    for name, parameter in stand_in.parameters.items():
        box, theirs = _box(narrow.held[name]), _box(index.held[name])
        steps = boxes.strides(theirs.shape)
        inside = (low - first for low, first in zip(box.low, theirs.low, strict=True))
        first = sum(at * step for at, step in zip(inside, steps, strict=True))
        parts.append((f"model/{name}", box, digest_at(parameter.detach(), first, steps)))
        for key, optimizer in stand_in.optimizers.items() if said.state is not None else ():
            for state, value in optimizer.state.get(parameter, {}).items():
                if isinstance(value, torch.Tensor):
                    alike = value.shape == parameter.shape and value.dim() > 0
                    pair = digest_at(value, first, steps) if alike else digest([value])[0]
                    parts.append((f"optimizer/{key}/{name}/{state}", box if alike else None, pair))
    return Claim(writer, said, parts)


def proved(claims: Sequence[Claim], ranks: Company) -> bool:
    """Whether all that the ranks replayed is together what the writers had."""
    if not 1 < ranks.world <= RANKS_MAX:
        return True
    return meet(ranks, "replayed", _added, msgspec.json.encode(list(claims)).decode()) == RIGHT


def _added(said: list[str]) -> str:
    found: dict[tuple[int, int], list[Claim]] = {}
    for text in said:
        for one in msgspec.json.decode(text, type=list[Claim]):
            found.setdefault((one.writer, one.said.step), []).append(one)
    return RIGHT if all(map(_right, found.values())) else "wrong"


def _right(claims: Sequence[Claim]) -> bool:
    """Of one writer at one step. Ranks that have the same box must have the same in it, and count once."""
    said = claims[0].said
    parts: dict[tuple[str, Box | None], Pair] = {}
    for one in claims:
        for name, box, pair in one.parts:
            if one.said != said or parts.setdefault((name, box), pair) != pair:
                return False
    sums: dict[str, list[Pair]] = {}
    for (name, _), pair in parts.items():
        sums.setdefault(name, []).append(pair)
    pairs = {name: total(found) for name, found in sums.items()}
    if base.parameters_digest(pairs) != said.parameters:
        return False
    return said.state is None or base.state_digest(pairs) == said.state
