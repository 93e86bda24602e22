"""Whom to read: the writers that hold what a rank wants. Pure."""

from collections.abc import Mapping, Sequence

from everstep.layout import boxes
from everstep.types import Box


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
