"""Layouts as they are found in the wild, for tensors of any shape, and what a rank's buffers hold under them."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch

from everstep.layout.language import Experts, Flat, Fused, Gather, Pad, Replicate, Shard, Slice, Stack, Unique
from everstep.layout.mesh import Mesh
from everstep.layout.spec import Rule, Spec
from everstep.layout.splits import Chunk, Heads
from everstep.types import Local, Piece

Shape = tuple[int, ...]
POISON = -7


@dataclass(frozen=True)
class Case:
    """A spec, and the program's names with the shape of the logical tensor each is of."""

    spec: Spec
    names: dict[str, Shape]


def one(mesh: Mesh, *words: object) -> Callable[[Shape], Case]:
    return lambda shape: Case(Spec(mesh, (Rule("w", words),)), {"w": shape})  # type: ignore[arg-type]


def fused(shape: Shape) -> Case:
    """Gate and up, each cut by rows among two."""
    half = shape[0] // 2
    cut = (Shard("tp", 0),)
    return Case(
        Spec(Mesh((("tp", 2),)), (Rule("w", (Fused(0, (Slice(half, cut), Slice(shape[0] - half, cut))),)),)),
        {"w": shape},
    )


def grouped(shape: Shape) -> Case:
    """Queries by head, keys and values repeated: four ranks, two heads of keys."""
    heads = shape[0] // 4 * 2
    rest = shape[0] - heads
    split = Heads(2) if rest % 2 == 0 and rest else Chunk()
    parts = (Slice(heads, (Shard("tp", 0),)), Slice(rest, (Shard("tp", 0, split),)))
    return Case(Spec(Mesh((("tp", 4),)), (Rule("w", (Fused(0, parts),)),)), {"w": shape})


def stacked(shape: Shape) -> Case:
    """One tensor per index of the first axis, on pipeline stages that take them in turns."""
    turns = tuple(tuple(range(stage, shape[0], 2)) for stage in range(2))
    rule = Rule(r"w\.(?P<l>\d+)", (Unique("pp", stages=turns, index="l"), Stack(0, "l"), Replicate("tp")), "w")
    return Case(Spec(Mesh((("pp", 2), ("tp", 2))), (rule,)), {f"w.{at}": shape for at in range(shape[0])})


def bucket(shape: Shape) -> Case:
    """ZeRO-1: rows cut unevenly by tensor parallelism, then one bucket with a neighbour, aligned, cut among three."""
    words = (Shard("tp", 0), Flat("dp", "b", 4))
    rules = (Rule("v", words), Rule("w", words))
    return Case(Spec(Mesh((("dp", 3), ("tp", 2))), rules), {"v": (5, 3), "w": shape})


def shuffled(shape: Shape) -> Case:
    """Blocks of one row, odd ones on one rank, even ones on the other, last first."""
    rows = range(shape[0] - 1, -1, -1)
    lists = (tuple(row for row in rows if row % 2), tuple(row for row in rows if not row % 2))
    return Case(Spec(Mesh((("tp", 2),)), (Rule("w", (Gather("tp", 0, 1, lists),)),)), {"w": shape})


def placed(shape: Shape) -> Case:
    lists = (tuple(range(0, shape[0], 3)), (), tuple(at for at in range(shape[0]) if at % 3))
    return Case(Spec(Mesh((("ep", 3),)), (Rule("w", (Experts("ep", 0, lists),)),)), {"w": shape})


def last(shape: Shape) -> int:
    return len(shape) - 1


LAYOUTS: dict[str, Callable[[Shape], Case]] = {
    "single": one(Mesh()),
    "ddp 4": one(Mesh((("dp", 4),)), Replicate("dp")),
    "fsdp 4": one(Mesh((("dp", 4),)), Shard("dp", 0, Chunk())),
    "hsdp 2x2": one(Mesh((("rep", 2), ("dp", 2))), Replicate("rep"), Shard("dp", 0, Chunk())),
    "tp columns": lambda shape: one(Mesh((("tp", 3),)), Shard("tp", last(shape)))(shape),
    "fsdp over tp rows": one(Mesh((("dp", 2), ("tp", 2))), Shard("tp", 0, Chunk()), Shard("dp", 0, Chunk())),
    "fsdp x tp": lambda shape: one(
        Mesh((("dp", 2), ("tp", 2))), Shard("tp", last(shape), Chunk()), Shard("dp", 0, Chunk())
    )(shape),
    "vocabulary padded": one(Mesh((("tp", 4),)), Pad(0, 8, "tp"), Shard("tp", 0)),
    "zero 3": one(Mesh((("dp", 3),)), Flat("dp")),
    "zero 1 over uneven tp": bucket,
    "zero 3 over columns": lambda shape: one(
        Mesh((("dp", 2), ("tp", 2))), Shard("tp", last(shape)), Flat("dp", align=2)
    )(shape),
    "gate and up": fused,
    "grouped heads": grouped,
    "stacked, interleaved": stacked,
    "experts": one(Mesh((("ep", 3),)), Experts("ep")),
    "experts, placed": placed,
    "blocks": shuffled,
}
SHAPES: list[Shape] = [(7,), (8, 6), (5, 3), (13, 4), (6, 5, 4), (4, 1, 3), (3, 2, 2, 3)]


def ranks(case: Case) -> Iterator[dict[str, Local]]:
    for rank in range(case.spec.mesh.size):
        yield case.spec.locals(case.names, rank)


def strided(buffer: torch.Tensor, shape: Shape, strides: Shape, offset: int) -> torch.Tensor:
    return torch.as_strided(buffer, shape, strides, buffer.storage_offset() + offset)


def read(piece: Piece, buffer: torch.Tensor) -> torch.Tensor:
    return strided(buffer, piece.box.shape, piece.strides, piece.base)


def filled(local: Local, marker: torch.Tensor) -> torch.Tensor:
    """A rank's buffer as a training program would have it: the elements it holds, and poison where nothing is."""
    buffer = torch.full((max(1, math.prod(local.shape)),), POISON, dtype=torch.int64)
    for piece in local.pieces:
        read(piece, buffer).copy_(part(marker, piece))
    return buffer


def part(marker: torch.Tensor, piece: Piece) -> torch.Tensor:
    return marker[tuple(slice(lo, h) for lo, h in zip(piece.box.low, piece.box.high, strict=True))]
