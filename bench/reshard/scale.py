"""Planning a load of a trillion parameters among 16,384 ranks: sizes on paper, the planner itself.

Each measurement is a process of its own, which ends with its high-water mark of memory.
"""

import resource
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache, partial
from multiprocessing import get_context

import torch

from bench.harness import Row
from bench.harness import seconds as seconds_of
from bench.reshard.everyone import Everyone
from everstep.layout import boxes
from everstep.layout.language import Flat, Layout, Replicate, Shard, Unique
from everstep.layout.mesh import Mesh
from everstep.layout.owners import order, read_from
from everstep.layout.spec import Rule, Spec
from everstep.layout.splits import Chunk
from everstep.recover.parts import boxes_of
from everstep.recover.wanted import Wanted
from everstep.store import base, document
from everstep.types import Box, Tensor

LAYERS, WIDTH, VOCABULARY = 128, 25600, 51200
BLOCK = {
    "norm_1.weight": (WIDTH,), "norm_1.bias": (WIDTH,), "norm_2.weight": (WIDTH,), "norm_2.bias": (WIDTH,),
    "attend.weight": (3 * WIDTH, WIDTH), "attend.bias": (3 * WIDTH,), "mix.weight": (WIDTH, WIDTH),
    "mix.bias": (WIDTH,), "up.weight": (4 * WIDTH, WIDTH), "up.bias": (4 * WIDTH,),
    "down.weight": (WIDTH, 4 * WIDTH), "down.bias": (WIDTH,),
}  # fmt: skip
SECONDS_MAX, GIB_MAX = "<= 10", "<= 2"
NOTHING = torch.empty(0)


@dataclass(frozen=True, slots=True)
class Grid:
    """Tensor x pipeline x data parallel. `flat`: the data-parallel cut is ZeRO's, over one bucket per rank."""

    tp: int
    pp: int
    dp: int
    flat: bool = False

    @property
    def ranks(self) -> int:
        return self.tp * self.pp * self.dp

    def __str__(self) -> str:
        return f"TP {self.tp} x PP {self.pp} x {'ZeRO' if self.flat else 'FSDP'} {self.dp}"


CASES = (
    (Grid(8, 16, 128), Grid(4, 32, 128)),
    (Grid(8, 16, 128), Grid(8, 16, 64)),
    (Grid(8, 16, 128, flat=True), Grid(4, 32, 128)),
    (Grid(8, 16, 128, flat=True), Grid(4, 32, 64, flat=True)),
)


def shapes() -> dict[str, tuple[int, ...]]:
    """GPT with 128 layers of width 25,600: 1.01e12 parameters in 1,540 tensors."""
    found: dict[str, tuple[int, ...]] = {"embed.weight": (VOCABULARY, WIDTH), "head.weight": (VOCABULARY, WIDTH)}
    found |= {"norm.weight": (WIDTH,), "norm.bias": (WIDTH,)}
    return found | {f"layers.{at}.{name}": shape for at in range(LAYERS) for name, shape in BLOCK.items()}


def spec(grid: Grid) -> Spec:
    each = LAYERS // grid.pp
    stages = tuple(tuple(range(at * each, (at + 1) * each)) for at in range(grid.pp))
    here, cut = Unique("pp", stages=stages, index="layer"), Flat("dp", "all") if grid.flat else Shard("dp", 0, Chunk())
    layer = r"layers\.(?P<layer>\d+)\."
    rules: tuple[tuple[str, Layout], ...] = (
        (layer + r"(attend|up)\.(weight|bias)", (here, Shard("tp", 0), cut)),
        (layer + r"(mix|down)\.weight", (here, Shard("tp", 1), cut)),
        (layer + r".*", (here, Replicate("tp"), cut)),
        (r"embed\.weight", (Unique("pp", 0), Shard("tp", 0), cut)),
        (r"head\.weight", (Unique("pp", grid.pp - 1), Shard("tp", 0), cut)),
        (r"norm\..*", (Unique("pp", grid.pp - 1), Replicate("tp"), cut)),
    )
    mesh = Mesh((("pp", grid.pp), ("dp", grid.dp), ("tp", grid.tp)))
    return Spec(mesh, tuple(Rule(match, layout) for match, layout in rules))


@dataclass(frozen=True, slots=True)
class Planned:
    """What planning took on one rank."""

    seconds: float
    gib: float
    """The whole process, in which all writers' boxes are: a rank that resumes has those that it reads."""
    looked: int
    """Writers whose indexes it read."""
    moves: int


def plan(source: Grid, target: Grid, rank: int) -> Planned:
    """Find out what to copy from whom, as `resume` does: from what writers say that they hold, one after the other."""
    names = shapes()
    everyone, held = Everyone(spec(source), names), [dict[str, list[Box]]() for _ in range(source.ranks)]
    for name in names:
        for one in everyone.held(name):
            for writer in one.ranks():
                held[writer].setdefault(name, []).append(one.box)
    locals_of = lru_cache(maxsize=None)(partial(spec(source).locals, names))
    wanted = {
        name: Wanted(name, NOTHING, local, [piece.box for piece in local.pieces])
        for name, local in spec(target).locals(names, rank).items()
    }
    looked: list[int] = []

    def look(writer: int) -> dict[str, list[Box]]:
        looked.append(writer)
        return held[writer]

    began = time.perf_counter()
    asked = order(rank, target.ranks, source.ranks)
    used, absent = read_from(boxes_of({name: want.held for name, want in wanted.items()}), look, asked)
    spent = time.perf_counter() - began
    assert not absent
    theirs = [locals_of(writer) for writer in used]  # which an index says
    began = time.perf_counter()
    moves = sum(len(wanted[name].take(local)) for part in theirs for name, local in part.items() if name in wanted)
    spent += time.perf_counter() - began
    assert not any(want.absent for want in wanted.values())
    return Planned(spent, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1 << 20), len(looked), moves)


def index_seconds(source: Grid) -> float:
    """What it takes to read the index of one writer, from memory: parse it and check every line of it."""
    held = [local for local in spec(source).locals(shapes(), 0).values() if local.pieces]
    stored, at = [], 0
    for name, local in ((f"{kind}/{local.logical}", local) for kind in ("model", "m", "v") for local in held):
        told = Tensor(name, "F32", local.logical_shape, local.pieces[0].box, 4 * boxes.volume(local.pieces[0].box))
        stored.append(base.Stored(told, at, "0" * 32))
        at += told.nbytes
    content = base.Content((), {}, (), {}, "", "", {})
    index = base.Index("0" * 32, 0, source.ranks, 1, 1, 64, "0" * 32, 64 + at, tuple(stored), content)
    text = document.pack("base", index)

    def read() -> None:
        found = document.parse(text, "base", base.Index, name="index")
        base._check(found, found.nbytes, "index")
        assert found.held

    return min(seconds_of(read) for _ in range(5))


def rows(quick: bool) -> Iterator[Row]:
    for source, target in CASES[:1] if quick else CASES:
        one = index_seconds(source)
        found = [_alone(source, target, rank) for rank in (0, target.ranks // 3, target.ranks - 1)]
        slowest = max(found, key=lambda planned: planned.seconds + one * planned.looked)
        case = f"1.01e12 parameters, {source} ({source.ranks:,} ranks) to {target} ({target.ranks:,})"
        said = (
            f"{slowest.looked:,} of {source.ranks:,} indexes, {1000 * one:.2f} ms each to parse and check; "
            f"{slowest.seconds:.2f} s for {slowest.moves:,} copies; opening files is not in it"
        )
        yield Row(case, "planning on one rank", slowest.seconds + one * slowest.looked, "s", said, SECONDS_MAX)
        most = max(planned.gib for planned in found)
        yield Row(case, "memory of planning", most, "GiB", "the whole process, with every writer's boxes", GIB_MAX)


def _alone(source: Grid, target: Grid, rank: int) -> Planned:
    with get_context("spawn").Pool(1) as process:
        return process.apply(plan, (source, target, rank))
