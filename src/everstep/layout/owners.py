"""Whom to read: the writers that hold what a rank wants. Pure."""

from collections.abc import Callable, Iterable, Mapping, Sequence

from everstep.layout import boxes
from everstep.types import Box

Held = Mapping[str, Sequence[Box]]


def order(rank: int, world: int, writers: int, own: int | None = None) -> list[int]:
    """All writers, as a rank asks them: its `own`, which is the one that was this rank, or the first, unless said
    otherwise; then the nearest to its place among the ranks. Where both cut alike, only finer or coarser, what it wants
    is there."""
    own = own if own is not None else rank if rank < writers else 0
    place = (2 * rank + 1) * writers // (2 * world)
    return [own, *(at for at in sorted(range(writers), key=lambda at: (abs(at - place), at)) if at != own)]


def read_from(
    wanted: Held, held: Callable[[int], Held], asked: Iterable[int]
) -> tuple[list[int], dict[str, list[Box]]]:
    """Which writers a rank reads that wants these boxes, by tensor, and what of them nobody holds.

    The first that is asked, always, and then each that holds something which those before it do not. Who comes after
    the last of them is not asked.
    """
    absent = {name: list(own) for name, own in wanted.items() if own}
    used: list[int] = []
    for at in asked:
        if used and not absent:
            break
        met, theirs = not used, held(at)
        for name in absent.keys() & theirs.keys():
            for box in theirs[name]:
                if any(boxes.intersect(part, box) for part in absent[name]):
                    absent[name] = [piece for part in absent[name] for piece in boxes.subtract(part, box)]
                    met = True
        absent = {name: rest for name, rest in absent.items() if rest}
        if met:
            used.append(at)
    return used, absent
