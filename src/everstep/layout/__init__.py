"""Which rank holds which part of which tensor, and how parts that were saved become parts that are wanted."""

from everstep.layout.language import (
    Experts,
    Flat,
    Fused,
    Gather,
    Pad,
    Partial,
    Replicate,
    Shard,
    Slice,
    Stack,
    Unique,
)
from everstep.layout.mesh import Mesh
from everstep.layout.spec import Rule, Spec
from everstep.layout.splits import Chunk, Even, Heads, Sizes
from everstep.types import Box, Local, Piece

__all__ = [
    "Box", "Chunk", "Even", "Experts", "Flat", "Fused", "Gather", "Heads", "Local", "Mesh", "Pad", "Partial", "Piece",
    "Replicate", "Rule", "Shard", "Sizes", "Slice", "Spec", "Stack", "Unique",
]  # fmt: skip
