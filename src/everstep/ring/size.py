"""How much memory ring and areas get. Pure: sizes in, sizes out."""

from dataclasses import dataclass

MIB = 1 << 20
GIB = 1 << 30
RING_BYTES_MIN = 64 * MIB
RECORDS_WANTED = 16
RECORDS_MIN = 4
SHARE = 1 / 2
"""Unless told otherwise, this part of the memory that is free."""
SHARE_MAX = 3 / 4
"""The same where the memory tier, at its smallest, does not fit otherwise."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """`areas` 1: there is no room to hold a state in memory beside the one on its way to the disk.

    `least_bytes` would be needed for that, `limit_bytes` is all there is.
    """

    ring_bytes: int
    areas: int
    state_bytes: int
    least_bytes: int = 0
    limit_bytes: int = 0


def sizes(
    record_bytes: int, state_bytes: int, budget: int | None, free: int, *, areas: int = 3, ring_bytes: int = 0
) -> Sizes:
    """So many areas and a ring of sixteen records if they fit, else fewer and at least four, else a ring alone.

    With two areas, the next state waits for the disk. The ring never gets less than two and a half records: one is
    written while one is taken; and `ring_bytes` if there is room. `free`: what is, and what this run had before.
    """
    limit = int(SHARE * free) if budget is None else budget
    most = int(SHARE_MAX * free) if budget is None else budget
    least = max(5 * record_bytes // 2, MIB // 16)
    few = max(RECORDS_MIN * record_bytes, least)
    wanted = max(RECORDS_WANTED * record_bytes, ring_bytes, RING_BYTES_MIN)
    for count in range(areas, 1, -1):
        rest = limit - count * state_bytes
        if rest >= few:
            return Sizes(max(min(wanted, rest), least), count, state_bytes)
    if most - 2 * state_bytes >= few:
        return Sizes(min(2 * few, most - 2 * state_bytes), 2, state_bytes)
    return Sizes(max(min(wanted, limit), least), 1, state_bytes, 2 * state_bytes + few, most)
