"""Boxes as sets of indices: every operation is compared with the same one on sets."""

import itertools
import math

from hypothesis import given
from hypothesis import strategies as st

from everstep.layout import boxes
from everstep.types import Box

Shapes = st.lists(st.integers(1, 5), min_size=0, max_size=4).map(tuple)


@st.composite
def inside(draw: st.DrawFn, shape: tuple[int, ...]) -> Box:
    ends = [sorted((draw(st.integers(0, extent)), draw(st.integers(0, extent)))) for extent in shape]
    return Box(tuple(low for low, _ in ends), tuple(high for _, high in ends))


@st.composite
def several(draw: st.DrawFn, count: int) -> tuple[tuple[int, ...], list[Box]]:
    shape = draw(Shapes)
    return shape, [draw(inside(shape)) for _ in range(draw(st.integers(count, count + 4)))]


def indices(box: Box) -> set[tuple[int, ...]]:
    return set(itertools.product(*(range(lo, h) for lo, h in zip(box.low, box.high, strict=True))))


@given(several(2))
def test_what_both_hold(given: tuple[tuple[int, ...], list[Box]]) -> None:
    one, two = given[1][:2]
    found = boxes.intersect(one, two)
    assert (indices(found) if found is not None else set()) == indices(one) & indices(two)


@given(several(2))
def test_what_is_left_of_a_box_is_disjoint_and_complete(given: tuple[tuple[int, ...], list[Box]]) -> None:
    one, two = given[1][:2]
    rest = boxes.subtract(one, two)
    assert len(rest) <= 2 * len(one.low) or not one.low
    assert sum(map(boxes.volume, rest)) == len(indices(one) - indices(two))
    assert set().union(*map(indices, rest)) == indices(one) - indices(two)


@given(several(1))
def test_what_nobody_holds(given: tuple[tuple[int, ...], list[Box]]) -> None:
    first, *others = given[1]
    rest = boxes.missing(first, others)
    assert set().union(*map(indices, rest)) == indices(first) - set().union(*map(indices, others))
    assert boxes.overlapping(rest) is None


@given(several(1))
def test_two_that_overlap_are_found_if_there_are_any(given: tuple[tuple[int, ...], list[Box]]) -> None:
    held = given[1]
    found = boxes.overlapping(held)
    pairs = [(a, b) for a, b in itertools.combinations(range(len(held)), 2) if indices(held[a]) & indices(held[b])]
    assert (found in pairs) if pairs else found is None


@given(st.data(), Shapes)
def test_a_flat_range_is_few_boxes_in_order_and_each_in_one_piece(data: st.DataObject, shape: tuple[int, ...]) -> None:
    size = math.prod(shape)
    start, stop = sorted((data.draw(st.integers(0, size)), data.draw(st.integers(0, size))))
    found = boxes.flat(shape, start, stop)
    steps = boxes.strides(shape)
    positions = [
        sum(index * step for index, step in zip(at, steps, strict=True)) for box in found for at in sorted(indices(box))
    ]
    assert positions == list(range(start, stop))
    assert len(found) <= max(1, 2 * len(shape) - 1)


@given(several(2))
def test_a_box_in_one_piece_is_a_range_of_the_other(given: tuple[tuple[int, ...], list[Box]]) -> None:
    box, within = given[1][:2]
    if not indices(box):
        return
    order = sorted(indices(within))
    places = [order.index(at) for at in sorted(indices(box)) if at in indices(within)]
    inside = len(places) == boxes.volume(box)
    assert boxes.in_one_piece(box, within) == (inside and places == list(range(places[0], places[0] + len(places))))


def test_a_tensor_without_axes_has_one_element() -> None:
    assert boxes.flat((), 0, 1) == [Box((), ())]
    assert boxes.volume(Box((), ())) == 1
    assert boxes.missing(Box((), ()), []) == [Box((), ())]
    assert boxes.missing(Box((), ()), [Box((), ())]) == []
