"""A tensor that is read piece by piece and belongs to several places: every element arrives, and that is proved."""

from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from everstep import native
from everstep.capture.digests import digest, total
from everstep.errors import Damaged
from everstep.layout import boxes
from everstep.recover import fetch as fetching
from everstep.recover import scatter, stretches
from everstep.recover.fetch import fetch
from everstep.recover.scatter import Scatter
from everstep.recover.wanted import Wanted
from everstep.store import base, names
from everstep.types import Box, Local, Piece, boxed
from tests.unit.recover.test_fetch import TENSORS, written

NAME = "w"


@st.composite
def cut(draw: st.DrawFn) -> tuple[tuple[int, ...], Box, Box]:
    """A tensor, the box of it that a writer has, and the box of it that a program has; they meet."""
    shape = tuple(draw(st.lists(st.integers(1, 9), min_size=1, max_size=3)))
    found = []
    for _ in range(2):
        low = tuple(draw(st.integers(0, extent - 1)) for extent in shape)
        found.append(Box(low, tuple(draw(st.integers(lo + 1, n)) for lo, n in zip(low, shape, strict=True))))
    return shape, found[0], found[1]


def wanted(shape: tuple[int, ...], box: Box, *, apart: bool) -> Wanted:
    """A parameter that holds a box, as it is or, `apart`, in two pieces of a flat buffer with something between."""
    if not apart or box.shape[0] < 2:
        return Wanted(NAME, torch.zeros(box.shape), boxed(NAME, shape, box), [box])
    middle = box.low[0] + 1
    upper, lower = Box(box.low, (middle, *box.high[1:])), Box((middle, *box.low[1:]), box.high)
    second = Piece(upper, boxes.volume(lower) + 3, boxes.strides(upper.shape))
    size = boxes.volume(box) + 3
    held = Local(NAME, shape, (size,), (Piece(lower, 0, boxes.strides(lower.shape)), second))
    return Wanted(NAME, torch.zeros(size), held, [piece.box for piece in held.pieces])


@settings(max_examples=200, deadline=None)
@given(cut(), st.booleans(), st.integers(1, 40))
def test_what_meets_arrives_and_the_sums_are_the_tensors_digest(
    given: tuple[tuple[int, ...], Box, Box], apart: bool, piece: int
) -> None:
    shape, theirs, ours = given
    whole = torch.randn(shape)
    source = whole[boxes.slices(theirs)].contiguous()
    want = wanted(shape, ours, apart=apart)
    moves = want.moves(boxed(NAME, shape, theirs))
    made = Scatter.of(boxed(NAME, shape, theirs), want.parameter, want.held, moves)
    assert made is not None
    count = source.numel()
    starts = range(0, count, piece)
    sums = [made.put(at, min(piece, count - at), source.data_ptr() + 4 * at) for at in reversed(starts)]
    assert total(sums) == digest([source])[0]
    expected = wanted(shape, ours, apart=apart)
    for move in expected.take(boxed(NAME, shape, theirs)):
        there = torch.as_strided(expected.parameter, move.target.box.shape, move.target.strides, move.target.base)
        there[boxes.slices(move.box, move.target.box)] = whole[boxes.slices(move.box)]
    assert torch.equal(want.parameter, expected.parameter)
    assert made.stand_in.shape == source.shape


def columns(first: int, last: int) -> tuple[torch.Tensor, Scatter]:
    """Some columns of `model/w`, read from a base."""
    shape = tuple(TENSORS["model/w"].shape)
    target = torch.full((shape[0], last - first), -1.0)
    box = Box((0, first), (shape[0], last))
    want = Wanted(NAME, target, boxed(NAME, shape, box), [box])
    theirs = boxed(NAME, shape, Box((0, 0), shape))
    made = Scatter.of(theirs, target, want.held, want.moves(theirs))
    assert made is not None
    return target, made


@pytest.fixture(params=[(1 << 20, 32 << 20), (8192, 16384), (64, 256)], ids=["whole", "rows", "less than a row"])
def sizes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stretches, "PIECE_BYTES", request.param[0])
    monkeypatch.setattr(stretches, "STRETCH_BYTES", request.param[1])


@pytest.mark.usefixtures("sizes")
def test_columns_are_read_from_a_base(tmp_path: Path) -> None:
    disk, entry = written(tmp_path)
    target, made = columns(250, 600)
    half = torch.empty(513, dtype=torch.bfloat16)
    fetch(disk, 0, entry, base.load(disk, 0, entry), {"model/w": made, "model/half": half})
    assert torch.equal(target, TENSORS["model/w"][:, 250:600])
    assert torch.equal(half, TENSORS["model/half"])
    assert not made.doubted


@pytest.mark.usefixtures("sizes")
@pytest.mark.parametrize("column", [10, 300], ids=["not wanted", "wanted"])
def test_a_flipped_bit_is_found_wherever_it_is(tmp_path: Path, column: int) -> None:
    disk, entry = written(tmp_path)
    index = base.load(disk, 0, entry)
    stored = next(stored for stored in index.tensors if stored.tensor.name == "model/w")
    path = tmp_path / names.tensors(0, 7, 1)
    data = bytearray(path.read_bytes())
    data[index.header_bytes + stored.offset + 4 * (5 * 1000 + column)] ^= 1
    path.write_bytes(data)
    with pytest.raises(Damaged, match="'model/w' fails its digest"):
        fetch(disk, 0, entry, index, {"model/w": columns(250, 600)[1]})


def test_a_column_laid_where_its_neighbour_belongs_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def wrongly(source: int, target: int, *shapes: object) -> None:
        native.lay(source + 4, target, *shapes)  # type: ignore[arg-type]

    disk, entry = written(tmp_path)
    monkeypatch.setattr(scatter, "native", Native(wrongly))
    made = columns(250, 600)[1]
    fetch(disk, 0, entry, base.load(disk, 0, entry), {"model/w": made})  # the base is not at fault
    assert made.doubted


class Native:
    """The real one, but for `lay`."""

    def __init__(self, lay: object) -> None:
        self.lay, self.digest_box = lay, native.digest_box


@pytest.mark.parametrize(
    ("told", "processors", "expected"),
    [
        (None, 2, 4),
        ("1", 1, 4),
        ("4", 2, 4),
        ("8", 2, 2),
        ("64", 2, 2),
        ("8", 96, 4),
        ("2", 2, 4),
        ("none", 2, 4),
        ("0", 2, 4),
    ],
)
def test_ranks_that_share_few_processors_read_by_fewer_threads(
    monkeypatch: pytest.MonkeyPatch, told: str | None, processors: int, expected: int
) -> None:
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    if told is not None:
        monkeypatch.setenv("LOCAL_WORLD_SIZE", told)
    monkeypatch.setattr(fetching.os, "sched_getaffinity", lambda _pid: set(range(processors)))
    assert fetching.readers() == expected
