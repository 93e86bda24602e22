"""Planning a load of a trillion parameters among 16,384 ranks: sizes on paper, the planner itself.

A rank finds out from two specs what it must copy from whom. Each measurement is a process of its own, which ends with
its high-water mark of memory.
"""

import resource
import time
from collections.abc import Iterator
from dataclasses import dataclass
from multiprocessing import get_context

from bench.harness import Row
from bench.harness import seconds as seconds_of
from everstep.layout import boxes
from everstep.layout.everyone import Everyone
from everstep.layout.language import Flat, Layout, Replicate, Shard, Unique
from everstep.layout.mesh import Mesh
from everstep.layout.owners import order, read_from
from everstep.layout.plan import Saved
from everstep.layout.spec import Rule, Spec
from everstep.layout.splits import Chunk
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
ASKED = 32


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


def by_specs(source: Grid, target: Grid, rank: int) -> int:
    """How many copies a rank makes, after it planned them all; nothing may be absent."""
    names, count = shapes(), 0
    everyone = Everyone(spec(source), names)
    for local in spec(target).locals(names, rank).values():
        held = [one.box for one in everyone.held(local.logical)]
        copies, absent = Saved(held).plan(local.pieces)
        assert not absent
        assert sum(copy.size for copy in copies) == sum(boxes.volume(piece.box) for piece in local.pieces)
        count += len(copies)
    return count


def by_files(source: Grid, target: Grid, rank: int) -> int:
    """How many writers a rank looks at before it knows whom to read, from what each says it holds; as `resume` does."""
    names = shapes()
    everyone, held = Everyone(spec(source), names), [dict[str, list[Box]]() for _ in range(source.ranks)]
    for name in names:
        for one in everyone.held(name):
            for writer in one.ranks():
                held[writer].setdefault(name, []).append(one.box)
    wanted = {
        local.logical: [piece.box for piece in local.pieces] for local in spec(target).locals(names, rank).values()
    }
    looked: list[int] = []

    def look(writer: int) -> dict[str, list[Box]]:
        looked.append(writer)
        return held[writer]

    began = time.perf_counter()
    _, absent = read_from(wanted, look, order(rank, target.ranks, source.ranks))
    assert not absent
    _timed.append(time.perf_counter() - began)
    return len(looked)


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


def asking(source: Grid) -> float:
    """What it takes to go through ranks one by one: of some of them, because of all it would be minutes."""
    names, held = shapes(), spec(source)
    return seconds_of(lambda: [held.locals(names, rank) for rank in range(ASKED)])


_timed: list[float] = []


def rows(quick: bool) -> Iterator[Row]:
    for source, target in CASES[:2] if quick else CASES:
        seconds, gib = [], []
        for rank in (0, target.ranks // 3, target.ranks - 1):
            spent, peak, _ = _measured("by_specs", source, target, rank)
            seconds.append(spent)
            gib.append(peak)
        case = f"1.01e12 parameters, {source} ({source.ranks:,} ranks) to {target} ({target.ranks:,})"
        asked = f"to ask the first {ASKED} of the {source.ranks:,} ranks what they hold: {asking(source):.2f} s"
        yield Row(case, "planning on one rank", max(seconds), "s", asked, SECONDS_MAX)
        yield Row(case, "memory of planning", max(gib), "GiB", "the whole process, torch and all", GIB_MAX)
    if not quick:
        source, target = CASES[0]
        found = [_measured("by_files", source, target, rank) for rank in (0, target.ranks // 3, target.ranks - 1)]
        spent, peak, looked = max(found, key=lambda one: one[2])
        case = f"1.01e12 parameters, {source} to {target}, from what 16,384 writers say"
        most = f"of {source.ranks:,}; the most of three ranks"
        yield Row(case, "indexes that a rank reads to plan", looked, "files", most)
        one = index_seconds(source)
        each = f"{1000 * one:.1f} ms each to parse and check, {spent:.2f} s to choose; opening files is not in it"
        yield Row(case, "reading them and choosing whom to read", spent + looked * one, "s", each, SECONDS_MAX)
        yield Row(case, "memory of all their boxes", peak, "GiB", "the whole process", GIB_MAX)


def _measured(how: str, source: Grid, target: Grid, rank: int) -> tuple[float, float, int]:
    with get_context("spawn").Pool(1) as alone:
        return alone.apply(_alone, (how, source, target, rank))


def _alone(how: str, source: Grid, target: Grid, rank: int) -> tuple[float, float, int]:
    began = time.perf_counter()
    count = {"by_specs": by_specs, "by_files": by_files}[how](source, target, rank)
    spent = _timed[-1] if _timed else time.perf_counter() - began
    return spent, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1 << 20), count
