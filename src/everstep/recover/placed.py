"""Whether a program holds what the writers held: digests of its own tensors, at the places its elements had with them.

Bytes are proved as they are read; this proves where they were put. What was read to where it belongs, or laid there as
it was read, has been digested there. Whatever was copied is digested where it lies now, and of a tensor that no rank
has all of, the ranks add up their parts. A digest does not depend on how a tensor is cut, so the sum is the one that
the writer had.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import msgspec
import torch

from everstep.capture.digests import digest_at, total
from everstep.company import Company, meet
from everstep.errors import Damaged
from everstep.foreign.tiling import some
from everstep.layout import boxes
from everstep.recover.parts import view
from everstep.types import Box, Local, Pair, Piece

RANKS_MAX = 512
"""Up to so many add up their parts: rank 0 hears of every part of every tensor."""


@dataclass(frozen=True, slots=True)
class Brought:
    """What the program took of a writer's tensor, and the tensor of its own that this is in now."""

    writer: int
    name: str
    theirs: Local
    digest: Pair
    """Of the writer's tensor without padding, as the writer had it."""
    boxes: tuple[Box, ...]
    target: torch.Tensor
    ours: Local
    copied: bool
    """Else it was read to where it belongs, or laid there, and digested."""


class Share(msgspec.Struct, frozen=True, array_like=True):
    """What a rank says of a tensor that it has only some boxes of: their part of the digest, and what all must be."""

    writer: int
    name: str
    size: int
    digest: Pair
    boxes: tuple[Box, ...]
    part: Pair


class Said(msgspec.Struct, frozen=True, array_like=True):
    """Tensors that were compared and agree, those of which the ranks hold only a part, those that differ."""

    proved: int
    partly: tuple[str, ...]
    wrong: tuple[str, ...]


def prove(step: int, brought: Sequence[Brought], ranks: Company) -> str:
    """A line for the ledger; Damaged on every rank if any of them holds other values than a writer did."""
    touched = {one.target.data_ptr() for one in brought if one.copied}
    proved, wrong = 0, []
    shares: list[Share] = []
    for one in brought:
        if not one.boxes:
            continue
        if one.target.data_ptr() not in touched:
            proved += 1
            continue
        size, held = _size(one.theirs), sum(map(boxes.volume, one.boxes))
        part = _digest(one)
        if held != size:
            shares.append(Share(one.writer, one.name, size, one.digest, one.boxes, part))
        elif part == one.digest:
            proved += 1
        else:
            wrong.append(f"{one.name} of writer {one.writer}")
    alone = tuple(f"{one.name} of writer {one.writer}" for one in shares) if ranks.world > RANKS_MAX else ()
    mine = msgspec.json.encode((Said(proved, alone, tuple(wrong)), [] if alone else shares)).decode()
    told = _added([mine]) if ranks.world == 1 else meet(ranks, "digests", _added, mine)
    found = msgspec.json.decode(told, type=Said)
    if found.wrong:
        raise Damaged(
            f"step {step}: {some(found.wrong)} arrived with another digest than it was saved with. What was read was "
            "what had been written, so it was put in a wrong place: the program's state is not to be used. Nothing in "
            "the run has changed. Resume with the layout that wrote it, and report this with what 'everstep explain' "
            "says."
        )
    left = f"; of {some(found.partly)} the ranks hold only parts, which prove nothing" if found.partly else ""
    return f"{found.proved} tensors have the digests that their writers had{left}"


def known(
    held: Mapping[str, Pair], tensors: Mapping[str, torch.Tensor], layout: Mapping[str, Local]
) -> dict[str, Pair]:
    """Digests of a writer's tensors without their padding: as they were told, else as they are. Both by full names."""
    found = {}
    for name, local in layout.items():
        anew = name not in held or _size(local) != tensors[name].numel()
        found[name] = _pieces(tensors[name], local) if anew else held[name]
    return found


def _pieces(tensor: torch.Tensor, local: Local) -> Pair:
    return total([digest_at(view(tensor, local, piece), piece.base, piece.strides) for piece in local.pieces])


def _size(local: Local) -> int:
    return sum(boxes.volume(piece.box) for piece in local.pieces)


def _digest(one: Brought) -> Pair:
    """What the boxes that were brought add to the writer's digest, by what lies in the program's tensor.

    Where a box lies follows from the two layouts alone; how it came there is what is being proved.
    """
    found = []
    for box in one.boxes:
        there, here = around(box, one.theirs), around(box, one.ours)
        inside = (low - first for low, first in zip(box.low, there.box.low, strict=True))
        first = there.base + sum(at * step for at, step in zip(inside, there.strides, strict=True))
        found.append(digest_at(view(one.target, one.ours, here)[boxes.slices(box, here.box)], first, there.strides))
    return total(found)


def around(box: Box, local: Local) -> Piece:
    """The piece that holds a box."""
    return next(piece for piece in local.pieces if boxes.intersect(piece.box, box) == box)


def _added(said: Iterable[str]) -> str:
    """What the ranks say, together. Ranks that hold the same boxes must have the same there, and count once."""
    told = [msgspec.json.decode(text, type=tuple[Said, list[Share]]) for text in said]
    wrong = [name for one, _ in told for name in one.wrong]
    partly = list(dict.fromkeys(name for one, _ in told for name in one.partly))
    proved = sum(one.proved for one, _ in told)
    tensors: dict[tuple[int, str], list[Share]] = {}
    for _, shares in told:
        for share in shares:
            tensors.setdefault((share.writer, share.name), []).append(share)
    for (writer, name), shares in tensors.items():
        parts = {share.boxes: share.part for share in shares}
        held = [box for own in parts for box in own]
        alike = all(parts[share.boxes] == share.part and share.digest == shares[0].digest for share in shares)
        if boxes.overlapping(held) is not None or sum(map(boxes.volume, held)) != shares[0].size:
            (partly if alike else wrong).append(f"{name} of writer {writer}")
        elif alike and total(list(parts.values())) == shares[0].digest:
            proved += 1
        else:
            wrong.append(f"{name} of writer {writer}")
    return msgspec.json.encode(Said(proved, tuple(partly), tuple(wrong))).decode()
