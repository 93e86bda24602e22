"""Laws of `lay` and `digest_box`: boxes that lie anyhow, against torch's own indexing and the reference digest."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from everstep.native import digest_box, lay, reference

DTYPES = [torch.uint8, torch.bfloat16, torch.float32, torch.float64, torch.complex128]


@st.composite
def strided(draw: st.DrawFn) -> tuple[torch.Tensor, torch.Tensor]:
    """Two views of one shape and dtype into larger tensors, each with its own order of axes, steps and beginning."""
    shape = draw(st.lists(st.integers(0, 5), max_size=4))
    dtype = draw(st.sampled_from(DTYPES))
    views = []
    for _ in range(2):
        order = draw(st.permutations(range(len(shape))))
        steps = [draw(st.integers(1, 3)) for _ in shape]
        firsts = [draw(st.integers(0, 2)) for _ in shape]
        room = [shape[axis] * steps[axis] + firsts[axis] for axis in order]
        whole = (torch.randn(room) * 100).to(dtype).permute([order.index(axis) for axis in range(len(shape))])
        cuts = zip(firsts, steps, shape, strict=True)
        views.append(whole[tuple(slice(first, first + step * extent, step) for first, step, extent in cuts)])
    return views[0], views[1]


@settings(max_examples=200, deadline=None)
@given(strided())
def test_a_box_arrives_and_nothing_around_it_changes(views: tuple[torch.Tensor, torch.Tensor]) -> None:
    source, target = views
    whole = target if target._base is None else target._base
    expected = whole.clone()
    torch.as_strided(expected, target.shape, target.stride(), target.storage_offset()).copy_(source)
    lay(source.data_ptr(), target.data_ptr(), source.shape, source.stride(), target.stride(), source.element_size())
    assert torch.equal(whole, expected)


@settings(max_examples=200, deadline=None)
@given(strided(), st.integers(0, 1 << 40), st.data(), st.integers(1, 3))
def test_a_digest_of_a_box_is_the_references(
    views: tuple[torch.Tensor, torch.Tensor], first: int, data: st.DataObject, threads: int
) -> None:
    part = views[0]
    indices = [data.draw(st.integers(0, 1000)) for _ in part.shape]
    found = digest_box(part.data_ptr(), part.shape, part.stride(), part.element_size(), first, indices, threads)
    assert found == reference.digest_at(part, first, indices)


def test_large_boxes_are_digested_by_threads() -> None:
    part = torch.randn(700, 3000)[:, 100:2100]
    found = [digest_box(part.data_ptr(), part.shape, part.stride(), 4, 5, (2000, 1), threads) for threads in (1, 4)]
    assert found[0] == found[1] == reference.digest_at(part, 5, (2000, 1))


@pytest.mark.parametrize(
    ("shape", "one", "two", "width", "message"),
    [
        ([2, 2], [2], [2, 1], 4, "expected 2"),
        ([2, 2], [2, 1], [2, 1, 1], 4, "expected 2"),
        ([2, -1], [2, 1], [2, 1], 4, "negative"),
        ([2], [1], [1], 3, "none of 1, 2, 4, 8, 16"),
    ],
)
def test_what_cannot_be_right_is_refused(
    shape: list[int], one: list[int], two: list[int], width: int, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        lay(0, 0, shape, one, two, width)
    with pytest.raises(ValueError, match=message):
        digest_box(0, shape, one, width, 0, two, 1)
