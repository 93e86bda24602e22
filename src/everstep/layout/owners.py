"""Who saves what several ranks hold: each its share, so that together they write everything once.

A pure function of what everyone holds: all ranks come to the same answer without asking each other.
"""

from collections.abc import Mapping, Sequence

from everstep.layout import boxes
from everstep.types import Box

WHOLE_ELEMENTS = 16 << 10
"""A box with fewer elements is not cut: one of its holders saves all of it."""


def shares(held: Sequence[Sequence[Box]]) -> list[list[Box]]:
    """For each rank the boxes it saves, from the boxes of one tensor that each rank holds.

    A box that several ranks hold alike is cut among them. Where boxes overlap without being alike, the later rank saves
    what the earlier ones do not hold.
    """
    holders: dict[Box, list[int]] = {}
    for rank, own in enumerate(held):
        for box in own:
            if boxes.volume(box):
                holders.setdefault(box, []).append(rank)
    found: list[list[Box]] = [[] for _ in held]
    taken: list[Box] = []
    turn = 0
    alike = boxes.overlapping(list(holders)) is None
    for box, ranks in holders.items():
        parts = [box] if alike else boxes.missing(box, taken)
        taken.append(box)
        for part in parts:
            size = boxes.volume(part)
            if len(ranks) == 1 or size < WHOLE_ELEMENTS:
                found[ranks[turn % len(ranks)]].append(part)
                turn += 1
                continue
            for at, rank in enumerate(ranks):
                start, stop = size * at // len(ranks), size * (at + 1) // len(ranks)
                found[rank] += [_moved(cut, part.low) for cut in boxes.flat(part.shape, start, stop)]
    return found


def read_from(
    wanted: Mapping[str, Sequence[Box]], held: Sequence[Mapping[str, Sequence[Box]]], first: int
) -> tuple[list[int], dict[str, list[Box]]]:
    """Which writers a rank reads that wants these boxes, by tensor, and what of them nobody holds.

    Writer `first`, always, and then each that holds something which those before it do not.
    """
    absent = {name: list(own) for name, own in wanted.items()}
    used = []
    for at in [first, *(other for other in range(len(held)) if other != first)]:
        met = at == first
        for name in absent:
            for box in held[at].get(name, ()):
                if any(boxes.intersect(part, box) for part in absent[name]):
                    absent[name] = [piece for part in absent[name] for piece in boxes.subtract(part, box)]
                    met = True
        if met:
            used.append(at)
    return used, {name: rest for name, rest in absent.items() if rest}


def _moved(box: Box, by: tuple[int, ...]) -> Box:
    return Box(
        tuple(low + offset for low, offset in zip(box.low, by, strict=True)),
        tuple(high + offset for high, offset in zip(box.high, by, strict=True)),
    )
