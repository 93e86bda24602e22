"""The newest step that all can restore, from the stretches that each can."""

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everstep.recover.cohort import common, together

Spans = list[tuple[int, int]]


@dataclass
class Held:
    """As much of an inventory as is asked for."""

    stretches: Spans

    def spans(self) -> Spans:
        return self.stretches


@pytest.mark.parametrize(
    ("held", "newest"),
    [
        ([[(0, 10)], [(0, 9)]], 9),
        ([[(0, 10)], [(5, 7), (9, 12)]], 10),
        ([[(0, 4), (8, 9)], [(5, 7)]], None),
        ([[(0, 4), (8, 9)], [(3, 7)]], 4),
        ([[(0, 10)], []], None),
        ([[(3, 3)], [(3, 3)], [(0, 5)]], 3),
    ],
)
def test_the_newest_step_that_all_hold(held: list[Spans], newest: int | None) -> None:
    assert common([Held(spans) for spans in held]) == newest  # type: ignore[misc]


@given(st.lists(st.sets(st.integers(0, 30)), min_size=1, max_size=4), st.integers(0, 30))
def test_stretches_are_what_the_sets_say(sets: list[set[int]], step: int) -> None:
    held = [Held([(at, at) for at in sorted(steps)]) for steps in sets]
    shared = set.intersection(*sets)
    assert [first for first, _ in together(held)] == sorted(shared)  # type: ignore[arg-type]
    assert common(held, step) == (step if step in shared else None)  # type: ignore[arg-type]
