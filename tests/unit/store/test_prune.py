"""What is pruned is not needed for what is kept; branches are trees of terms."""

import itertools

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from everstep.store import prune
from everstep.store.manifest import BaseEntry, Manifest, Segment, Term


def term(epoch: int, parent: int | None, from_step: int | None) -> Term:
    return Term(epoch, parent, from_step, 0, "", "", 1)


def manifest(terms: list[Term], segments: list[Segment], bases: list[BaseEntry]) -> Manifest:
    return Manifest("0" * 32, 0, 1, terms[-1].epoch, "open", -1, tuple(terms), tuple(segments), tuple(bases))


def base(step: int, epoch: int = 1) -> BaseEntry:
    return BaseEntry(step, epoch, 100, "")


TREE = manifest(
    [term(1, None, 0), term(2, 1, 50), term(3, 1, 80), term(4, 3, 90)],
    [
        Segment(1, 0, 0, 40, 10), Segment(1, 1, 40, 100, 10), Segment(2, 0, 50, 70, 10), Segment(3, 0, 80, 95, 10),
        Segment(4, 0, 90),
    ],
    [base(0), base(60), base(99), base(60, 2), base(85, 3), base(92, 3), base(91, 4)],
)  # fmt: skip


def test_a_branch_is_the_way_to_the_root_and_each_epoch_ends_where_the_next_begins() -> None:
    assert prune.lineage(TREE) == [(4, None), (3, 90), (1, 80)]
    assert prune.lineage(TREE, 2) == [(2, None), (1, 50)]


def test_bases_beyond_the_fork_belong_to_the_other_branch() -> None:
    held = [(entry.step, entry.epoch) for entry in prune.on_branch(TREE)]
    assert held == [(0, 1), (60, 1), (85, 3), (91, 4)]
    assert [(entry.step, entry.epoch) for entry in prune.on_branch(TREE, 2)] == [(0, 1), (60, 2)]


def test_a_parent_forked_before_its_own_parent_ends_earlier() -> None:
    nested = manifest([term(1, None, 0), term(2, 1, 50), term(3, 2, 30)], [], [base(40), base(45, 2)])
    assert prune.lineage(nested) == [(3, None), (2, 30), (1, 30)]
    assert prune.on_branch(nested) == []


def test_an_epoch_that_never_settled_is_on_no_branch() -> None:
    opening = manifest([term(1, None, 0), term(2, None, None)], [], [base(5)])
    assert prune.lineage(opening) == [(1, None)]
    assert prune.lineage(opening, 2) == []


@pytest.mark.parametrize("parent", [1, 2, 9])
def test_a_term_that_descends_from_itself_ends_the_way(parent: int) -> None:
    assert prune.lineage(manifest([term(1, parent, 0), term(2, 1, 5)], [], [])) == [(2, None), (1, 5)]


def reach(held: Manifest) -> set[int]:
    """The steps of the current branch that its bases and whole segments lead to."""
    limits = dict(prune.lineage(held))
    steps: set[int] = set()
    for entry in held.segments:
        if entry.epoch in limits:
            end = entry.last_step if entry.last_step is not None else entry.after_step + 5
            limit = limits[entry.epoch]
            steps |= set(range(entry.after_step + 1, (end if limit is None else min(end, limit)) + 1))
    found: set[int] = set()
    for start in prune.on_branch(held):
        found |= {start.step, *itertools.takewhile(steps.__contains__, itertools.count(start.step + 1))}
    return found


def test_without_keeps_every_step_from_the_first_kept_base_on() -> None:
    kept = prune.without(TREE, lambda entry: entry.step >= 60, from_step=60)
    assert {step for step in reach(TREE) if step >= 60} == reach(kept)
    assert kept.term(2) is None
    assert prune.without(kept, lambda entry: entry.step >= 60, from_step=60) == kept


def test_the_growing_segment_always_stays() -> None:
    assert Segment(4, 0, 90) in prune.without(TREE, lambda _: False, from_step=10**9).segments


@settings(deadline=None, max_examples=200, print_blob=True)
@given(st.lists(st.integers(1, 8), min_size=1, max_size=12), st.integers(0, 2000), st.sets(st.integers(1, 40)))
def test_within_fits_or_keeps_two_bases_and_loses_no_newer_step(
    lengths: list[int], bytes_max: int, steps: set[int]
) -> None:
    ends = list(itertools.accumulate(lengths))
    segments = [Segment(1, at, end - n, end, 50) for at, (n, end) in enumerate(zip(lengths, ends, strict=True))]
    bases = [base(0), *(base(step) for step in sorted(steps) if step <= ends[-1])]
    whole = manifest([term(1, None, 0)], segments, bases)
    kept = prune.within(whole, bytes_max)
    assert len(kept.bases) >= min(2, len(bases))
    assert kept.bases == whole.bases[len(whole.bases) - len(kept.bases) :]
    assert prune.held_bytes(kept) <= bytes_max or len(kept.bases) <= 2
    assert {step for step in reach(whole) if step >= kept.bases[0].step} == reach(kept)
    assert prune.files(kept) <= prune.files(whole)


@settings(deadline=None, max_examples=200, print_blob=True)
@given(st.sets(st.integers(1, 40)), st.integers(0, 50))
def test_within_keeps_what_leads_to_the_step_that_all_writers_hold(steps: set[int], floor: int) -> None:
    bases = [base(0), *(base(step) for step in sorted(steps))]
    whole = manifest([term(1, None, 0)], [Segment(1, 0, 0, 50, 500)], bases)
    kept = prune.within(whole, 0, floor)
    assert min(entry.step for entry in kept.bases) <= floor
    assert floor in reach(kept)


def test_within_leaves_a_run_alone_that_fits() -> None:
    assert prune.within(TREE, 10**9) == TREE


def test_within_leaves_other_branches_alone() -> None:
    assert prune.within(TREE, 1) == TREE


def test_within_leaves_another_branch_alone_that_has_records_and_no_base_of_its_own() -> None:
    forked = manifest(
        [term(1, None, 0), term(2, 1, 50)],
        [Segment(1, 0, 0, 50, 10), Segment(1, 1, 50, 100, 10), Segment(2, 0, 50, 70, 10)],
        [base(0), base(20), base(40), base(60, 2)],
    )
    assert prune.within(forked, 1) == forked


def test_held_bytes_leaves_the_growing_segment_out() -> None:
    assert prune.held_bytes(TREE) == 4 * 10 + 7 * 100
    assert prune.held_bytes(msgspec.structs.replace(TREE, bases=())) == 40


def other_layout(end: int | None, begins: int) -> Manifest:
    """A writer that held one layout up to `end`, and from `begins` on another."""
    return manifest(
        [term(1, None, 0), term(2, 1, 30), term(3, None, begins)],
        [Segment(1, 0, 0, 30, 10), Segment(2, 0, 30, end, None if end is None else 10), Segment(3, 0, begins, 90, 10)],
        [base(0), base(20), base(40, 2), base(begins, 3), base(70, 3), base(80, 3)],
    )


def test_what_was_held_in_another_layout_goes_first_once_all_writers_hold_the_new_one() -> None:
    whole = other_layout(50, 50)
    assert prune.history(whole) == {1, 2}
    assert prune.within(whole, 10**9) == whole
    assert prune.within(whole, 500, floor=49) == whole, "not all have come as far"
    kept = prune.within(whole, 500, floor=50)
    assert [(entry.step, entry.epoch) for entry in kept.bases] == [(50, 3), (70, 3), (80, 3)]
    assert {entry.epoch for entry in kept.segments} == {term.epoch for term in kept.terms} == {3}
    assert [entry.step for entry in prune.within(whole, 0, floor=85).bases] == [70, 80]


@pytest.mark.parametrize(("end", "begins"), [(60, 50), (None, 50)])
def test_steps_that_were_left_behind_in_another_layout_are_a_branch_and_stay(end: int | None, begins: int) -> None:
    whole = other_layout(end, begins)
    assert 2 not in prune.history(whole)
    assert prune.within(whole, 0) == whole


def test_a_run_that_began_at_nothing_has_no_history() -> None:
    assert prune.history(TREE) == set()
