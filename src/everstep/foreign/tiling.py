"""Whether boxes hold every element of a tensor exactly once, and how a message says where they do not. Pure."""

import math
from collections.abc import Iterable, Sequence

from everstep.layout import boxes
from everstep.types import Box, whole

NAMED_MAX = 4
SEARCHED_MAX = 1000
"""With more boxes than this a hole is counted and not located: finding it takes the square of their number."""


def overlap(held: Sequence[Box]) -> str | None:
    """Two boxes that share an element; None when no two do."""
    if not held:
        return None
    # Swept along the axis that is cut most, the search is linear for every regular layout.
    axes = sorted(range(len(held[0].low)), key=lambda axis: -len({box.low[axis] for box in held}))
    turned = [Box(tuple(box.low[axis] for axis in axes), tuple(box.high[axis] for axis in axes)) for box in held]
    pair = boxes.overlapping(turned)
    return None if pair is None else f"{span(held[pair[0]])} and {span(held[pair[1]])}"


def hole(shape: tuple[int, ...], held: Sequence[Box]) -> tuple[int, str]:
    """How many elements are in none of these boxes, no two of which overlap, and where; "" when there are too many."""
    count = math.prod(shape) - sum(map(boxes.volume, held))
    if not count or len(held) > SEARCHED_MAX:
        return count, ""
    return count, some(map(span, boxes.missing(whole(shape), held)))


def span(box: Box) -> str:
    return "[" + ", ".join(f"{low}:{high}" for low, high in zip(box.low, box.high, strict=True)) + "]"


def some(items: Iterable[str]) -> str:
    """A list that fits into a message."""
    given = list(items)
    return ", ".join(given[:NAMED_MAX]) + (f" and {len(given) - NAMED_MAX} more" if len(given) > NAMED_MAX else "")
