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
SHARE_LEAST = 9 / 10
"""The same where otherwise no step could be recorded."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """`areas` 1: there is no room to hold a state in memory beside the one on its way to the disk; 0: nor for that.

    `least_bytes` would be needed for one more, `limit_bytes` is all there is.
    """

    ring_bytes: int
    areas: int
    state_bytes: int
    least_bytes: int = 0
    limit_bytes: int = 0
    refusal: str = ""
    """Where there are no areas: what to say to whoever wants them."""


def sizes(
    record_bytes: int, state_bytes: int, budget: int | None, free: int, *, areas: int = 3, ring_bytes: int = 0
) -> Sizes:
    """So many areas and a ring of sixteen records if they fit, else fewer and at least four, else one and a ring.

    With two areas, the next state waits for the disk. `ring_bytes` if there is room. `free`: what is, and what this run
    had before.
    """
    limit, most, all_there_is = (
        int(share * free) if budget is None else budget for share in (SHARE, SHARE_MAX, SHARE_LEAST)
    )
    least = _ring_bytes_min(record_bytes)
    few = max(RECORDS_MIN * record_bytes, least)
    wanted = max(RECORDS_WANTED * record_bytes, ring_bytes, RING_BYTES_MIN)
    for count in range(areas, 1, -1):
        rest = limit - count * state_bytes
        if rest >= few:
            return Sizes(max(min(wanted, rest), least), count, state_bytes)
    if most - 2 * state_bytes >= few:
        return Sizes(min(2 * few, most - 2 * state_bytes), 2, state_bytes)
    if all_there_is < needed(record_bytes, state_bytes):
        return Sizes(0, 0, state_bytes, needed(record_bytes, state_bytes), all_there_is)
    return Sizes(max(min(wanted, limit - state_bytes), least), 1, state_bytes, 2 * state_bytes + few, most)


def needed(record_bytes: int, state_bytes: int) -> int:
    """Without so much no step can be recorded: a state that the log leads on from goes to the disk first."""
    return state_bytes + _ring_bytes_min(record_bytes)


def _ring_bytes_min(record_bytes: int) -> int:
    """Two records and a half: one is written while one is taken."""
    return max(5 * record_bytes // 2, MIB // 16)
