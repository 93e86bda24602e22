"""The writer that a rank goes on for: whose random numbers it draws, and whose state it takes where ranks differ.

In the layout that trained that is the one with its own number. In another, numbers mean nothing: a rank goes on for one
who read its part of the data, and all that read it now for the same one, so that they draw alike. Nobody read it: then
its generators are derived. Where nobody said who reads what, it goes by the number after all.
"""

from collections.abc import Iterator, Mapping

from everstep.recover.writers import Writers
from everstep.types import DataPlace, Local


def own(writers: Writers, rank: int, place: DataPlace | None, held: Mapping[str, Local]) -> int | None:
    """Its number; None if nobody was this rank. `held` is what the rank holds now."""
    there = rank if rank < len(writers) else None
    then = writers.index(there or 0).content.place
    if place is None or then is None:
        return there
    if there is not None and then == place and writers.index(there).held == held:
        return there
    if place.rank >= then.world:
        return None
    return next((at for at in _likely(place.rank, then.world, len(writers)) if _reads(writers, at, place.rank)), None)


def _reads(writers: Writers, at: int, rank: int) -> bool:
    place = writers.index(at).content.place
    return place is not None and place.rank == rank


def _likely(rank: int, world: int, writers: int) -> Iterator[int]:
    """Where one with that part of the data is, if ranks that read the same follow each other, or if they take turns;
    else anywhere. So few indexes are read."""
    likely = dict.fromkeys((rank * (writers // world), rank))
    yield from (at for at in likely if at < writers)
    yield from (at for at in range(writers) if at not in likely)
