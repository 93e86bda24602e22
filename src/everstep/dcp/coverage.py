"""Whether the parts of a tensor, as somebody describes them, are every element of it exactly once. Pure.

torch.distributed.checkpoint compares volumes at save when there are several ranks, and nothing at load: elements that
no chunk holds keep whatever was in memory.
"""

import math
from collections.abc import Sequence

from everstep.foreign.tiling import hole, overlap, span
from everstep.types import Box, whole


def fault(name: str, shape: tuple[int, ...], held: Sequence[Box]) -> str | None:
    """What is wrong, as a message says it; None when every element is in exactly one box."""
    if list(held) == [whole(shape)]:
        return None
    for box in held:
        if not len(box.low) == len(box.high) == len(shape):
            return f"a part of {name!r} has {len(box.low)} axes, the tensor has {len(shape)}"
        if any(not 0 <= low <= high <= n for low, high, n in zip(box.low, box.high, shape, strict=True)):
            return f"the part {span(box)} of {name!r} leaves its shape {list(shape)}"
    if pair := overlap(held):
        return f"the parts {pair} of {name!r} overlap"
    count, where = hole(shape, held)
    if count:
        return f"{count} of {math.prod(shape)} elements of {name!r} are in no part{where and f': {where}'}"
    return None
