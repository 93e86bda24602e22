"""Every element is in exactly one part: at save, before anything is written, and again before anything is committed."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as torch_dcp
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata

from everstep.dcp import Writer, coverage
from everstep.types import Box
from tests.unit.dcp.states import differences, load, made, refused, save

Spans = list[tuple[tuple[int, ...], tuple[int, ...]]]
CASES: list[tuple[tuple[int, ...], Spans, str | None]] = [
    ((4,), [((0,), (4,))], None),
    ((4, 6), [((0, 0), (4, 3)), ((0, 3), (4, 6))], None),
    ((), [((), ())], None),
    ((0, 3), [((0, 0), (0, 3))], None),
    ((0, 3), [], None),
    ((4,), [((0,), (4,)), ((4,), (4,))], None),
    ((4,), [], r"4 of 4 elements of 'w' are in no part: \[0:4\]"),
    ((), [], "1 of 1 elements"),
    ((4, 6), [((0, 0), (4, 3)), ((0, 4), (4, 6))], r"4 of 24 elements of 'w' are in no part: \[0:4, 3:4\]"),
    ((4,), [((0,), (3,)), ((2,), (4,))], r"the parts \[0:3\] and \[2:4\] of 'w' overlap"),
    ((4,), [((0,), (4,)), ((0,), (4,))], "overlap"),
    ((), [((), ()), ((), ())], "overlap"),
    ((4,), [((0,), (5,))], r"\[0:5\] of 'w' leaves its shape \[4\]"),
    ((4,), [((-1,), (4,))], "leaves its shape"),
    ((4,), [((0, 0), (4, 1))], "has 2 axes, the tensor has 1"),
]


@pytest.mark.parametrize(("shape", "spans", "pattern"), CASES)
def test_a_hole_an_overlap_and_a_part_outside_are_named(shape: Any, spans: Spans, pattern: str | None) -> None:
    found = coverage.fault("w", shape, [Box(low, high) for low, high in spans])
    if pattern is None:
        assert found is None
    else:
        with pytest.raises(AssertionError, match=pattern):
            raise AssertionError(found)


@settings(deadline=None)  # a busy machine is no fault
@given(
    st.lists(st.integers(1, 9), min_size=1, max_size=5), st.lists(st.integers(1, 9), min_size=1, max_size=5), st.data()
)
def test_a_grid_covers_and_no_longer_does_when_a_cell_is_lost_or_doubled(
    rows: list[int], columns: list[int], drawn: st.DataObject
) -> None:
    def edges(sizes: list[int]) -> list[tuple[int, int]]:
        return [(sum(sizes[:at]), sum(sizes[: at + 1])) for at in range(len(sizes))]

    cells = [Box((a, c), (b, d)) for a, b in edges(rows) for c, d in edges(columns)]
    shape = (sum(rows), sum(columns))
    at = drawn.draw(st.integers(0, len(cells) - 1))
    assert coverage.fault("w", shape, cells) is None
    assert coverage.fault("w", shape, cells[:at] + cells[at + 1 :]) is not None
    assert coverage.fault("w", shape, [*cells, cells[at]]) is not None


class Cutting(DefaultSavePlanner):
    """Plans one row less of a tensor than it has: for one process, torch's own planner does not see it."""

    def create_local_plan(self) -> Any:
        plan = super().create_local_plan()
        return dataclasses.replace(plan, items=[self._cut(item) for item in plan.items])

    def _cut(self, item: Any) -> Any:
        if item.index.fqn != "model.matrix":
            return item
        chunk = ChunkStorageMetadata(torch.Size([0, 0]), torch.Size([36, 41]))
        return dataclasses.replace(item, tensor_data=dataclasses.replace(item.tensor_data, chunk=chunk))


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_a_hole_in_the_plan_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    def saved() -> None:
        torch_dcp.save(made(2), storage_writer=Writer(tmp_path / "a"), planner=Cutting())

    refused(saved, r"41 of 1517 elements of 'model.matrix' are in no part: \[36:37, 0:41\]")
    assert list(tmp_path.iterdir()) == []


class Forgetful(Writer):
    """Loses what it wrote of one item, as a thread does whose failure nobody saw."""

    def finish(self, metadata: Any, results: Any) -> None:
        super().finish(metadata, [[one for one in rank if one.index.fqn != "step"] for rank in results])


class Inventive(Writer):
    """Reports an item that is in no plan."""

    def finish(self, metadata: Any, results: Any) -> None:
        del metadata.state_dict_metadata["step"]
        super().finish(metadata, results)


@pytest.mark.parametrize(
    ("kind", "pattern"), [(Forgetful, "'step' .* no rank wrote it"), (Inventive, "'step' was written, and the plan")]
)
def test_what_was_written_must_be_what_was_planned(kind: type[Writer], pattern: str, tmp_path: Path) -> None:
    save(tmp_path / "a", made(1))
    refused(lambda: save(tmp_path / "a", made(2), kind(tmp_path / "a")), pattern)
    assert differences(load(tmp_path / "a"), made(1)) == []


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_a_planner_that_keeps_what_only_a_pickle_can_hold_is_refused(tmp_path: Path) -> None:
    class Keeping(DefaultSavePlanner):
        def create_global_plan(self, all_plans: Any) -> Any:
            plans, metadata = super().create_global_plan(all_plans)
            return plans, dataclasses.replace(metadata, planner_data={"a": object})

    refused(
        lambda: torch_dcp.save(made(1), storage_writer=Writer(tmp_path / "a"), planner=Keeping()),
        "the planner keeps dict in the metadata",
    )
    assert not (tmp_path / "a").exists()
