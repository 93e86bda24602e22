"""Whether boxes hold every element of a tensor exactly once. Pure.

torch.distributed.checkpoint compares volumes at save when there are several ranks, and nothing at load: elements that
no chunk holds keep whatever was in memory.
"""

import math
from collections.abc import Iterable, Sequence

from everstep.layout import boxes
from everstep.types import Box, whole

NAMED_MAX = 3
SEARCHED_MAX = 1000
"""With more boxes than this a hole is counted and not located: finding it takes the square of their number."""


def fault(name: str, shape: tuple[int, ...], held: Sequence[Box]) -> str | None:
    """What is wrong, as a message says it; None when every element is in exactly one box."""
    if list(held) == [whole(shape)]:
        return None
    for box in held:
        if not len(box.low) == len(box.high) == len(shape):
            return f"a part of {name!r} has {len(box.low)} axes, the tensor has {len(shape)}"
        if any(not 0 <= low <= high <= n for low, high, n in zip(box.low, box.high, shape, strict=True)):
            return f"the part {span(box)} of {name!r} leaves its shape {list(shape)}"
    # Swept along the axis that is cut most, the search is linear for every regular layout.
    order = sorted(range(len(shape)), key=lambda axis: -len({box.low[axis] for box in held}))
    turned = [Box(tuple(box.low[axis] for axis in order), tuple(box.high[axis] for axis in order)) for box in held]
    if (pair := boxes.overlapping(turned)) is not None:
        return f"the parts {span(held[pair[0]])} and {span(held[pair[1]])} of {name!r} overlap"
    count, wanted = sum(map(boxes.volume, held)), math.prod(shape)
    if count != wanted:
        gaps = boxes.missing(whole(shape), held) if len(held) <= SEARCHED_MAX else []
        where = f": {some(map(span, gaps))}" if gaps else ""
        return f"{wanted - count} of {wanted} elements of {name!r} are in no part{where}"
    return None


def span(box: Box) -> str:
    return "[" + ", ".join(f"{low}:{high}" for low, high in zip(box.low, box.high, strict=True)) + "]"


def some(items: Iterable[str]) -> str:
    """A list that fits into a message."""
    given = list(items)
    return ", ".join(given[:NAMED_MAX]) + (f" and {len(given) - NAMED_MAX} more" if len(given) > NAMED_MAX else "")
