"""A schedule carries every byte once, in time, within the memory there is; its regimes end where they are said to."""

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from everstep.tune.facts import Facts, Piece
from everstep.tune.schedule import Copy, Schedule, regime, schedule, spread
from tests.unit.tune.measured import anything, facts

spreads = st.none() | st.integers(1, 4)
peaks = st.just(0) | st.integers(0, 1 << 20)
NEAR = 1e-9
"""Seconds; the smallest thing that is carried, 64 bytes, takes longer in all that is drawn."""


def update(measured: Facts, found: Schedule) -> float:
    """When the optimizer step of a round begins, at the latest: all waiting may be in one round."""
    return measured.window_seconds + found.stall_seconds * found.spread


def timeline(measured: Facts, found: Schedule) -> list[tuple[float, Copy]]:
    """All copies from the start of the first round, where one snapshot is drained over several."""
    waited = found.stall_seconds * found.spread
    starts = [0.0, *(at * measured.step_seconds + waited for at in range(1, found.spread))]
    return [
        (start + copy.start_seconds, copy) for start, held in zip(starts, found.rounds, strict=True) for copy in held
    ]


BORDERS: list[tuple[int, dict[str, Any], str]] = [
    (3008, {"bus_bytes_per_s": 1024.0}, "A"),
    (3072, {"bus_bytes_per_s": 1024.0}, "A"),
    (3136, {"bus_bytes_per_s": 1024.0}, "B"),
    (4096, {"bus_bytes_per_s": 1024.0}, "B"),
    (4160, {"bus_bytes_per_s": 1024.0}, "C"),
    # A gradient of half a second is gone before the optimizer step is: it takes from the drain.
    (3072, {"bus_bytes_per_s": 1024.0, "gradient_bytes": 512}, "A"),
    (3584, {"bus_bytes_per_s": 1024.0, "gradient_bytes": 512}, "B"),
    (3648, {"bus_bytes_per_s": 1024.0, "gradient_bytes": 512}, "C"),
    # One of a second and a half leaves no drain, and takes from the window.
    (2560, {"bus_bytes_per_s": 1024.0, "gradient_bytes": 1536}, "A"),
    (2624, {"bus_bytes_per_s": 1024.0, "gradient_bytes": 1536}, "C"),
    # Memory does not decide the regime.
    (3136, {"bus_bytes_per_s": 1024.0, "room": ((0.0, 0),)}, "B"),
]


@pytest.mark.parametrize("nbytes, named, expected", BORDERS)
def test_the_regimes_end_where_window_and_step_do(nbytes: int, named: dict[str, Any], expected: str) -> None:
    assert regime(facts(nbytes, **named)) == schedule(facts(nbytes, **named)).regime == expected


def test_the_remainder_is_cut_off_snapshotted_and_drained_during_the_optimizer_step() -> None:
    found = schedule(facts(2048, 1536, bus_bytes_per_s=1024.0, device_bytes_per_s=65536.0, interference=0.03125))
    assert found.rounds == ((
        Copy("0", "direct", 0, 1536, 0.0, 1.5),
        Copy("1", "direct", 0, 1536, 1.5, 1.5),
        Copy("0", "snapshot", 1536, 512, 3.0, 0.5),
    ),)  # fmt: skip
    assert (found.snapshot_bytes, found.peak_bytes, found.stall_seconds) == (512, 0, 0.0)
    assert found.snapshot_seconds == 2 * 512 / 65536
    assert found.overhead == (2 * 512 / 65536 + 3.5 / 32) / 4


def test_over_two_rounds_each_step_carries_half_the_state_and_a_whole_gradient() -> None:
    found = schedule(facts(2048, 2048, bus_bytes_per_s=1024.0, gradient_bytes=512, interference=0.25))
    assert (found.regime, found.spread, found.repaired) == ("C", 2, True)
    assert sorted(found.rounds, key=lambda held: held[0].name) == [
        (Copy("0", "direct", 0, 2048, 0.0, 2.0),), (Copy("1", "direct", 0, 2048, 0.0, 2.0),),
    ]  # fmt: skip
    assert found.overhead == 0.25 * (2.0 + 0.5) / 4


def test_without_gradients_one_snapshot_drains_over_the_rounds() -> None:
    found = schedule(facts(3072, 2048, 2048, bus_bytes_per_s=1024.0, interference=0.25))
    assert (found.regime, found.spread, found.repaired) == ("C", 2, False)
    assert found.rounds == (
        (
            Copy("1", "direct", 0, 1024, 0.0, 1.0),
            Copy("2", "direct", 0, 2048, 1.0, 2.0),
            Copy("0", "snapshot", 0, 3072, 3.0, 3.0),
        ),
        (Copy("1", "snapshot", 1024, 1024, 2.0, 1.0),),
    )
    assert found.overhead == (2 * 4096 / 100_000 / 2 + 0.25 * 3.5) / 4


@pytest.mark.parametrize(
    "nbytes, gradient, starts",
    [
        (3008, 0, [("direct", 0.0)]),
        (3100, 0, [("direct", 0.0), ("snapshot", 3.0)]),  # the cut leaves the bus idle for some bytes: not made yet
        (3100, 512, [("direct", 0.0), ("snapshot", 3.5)]),
        (2048, 1536, [("direct", 0.5)]),
        (2048, 2048, [("direct", 1.0)]),
        (2048, 2560, [("direct", 1.5)]),  # backward has waited for half a second
    ],
)
def test_the_gradient_goes_first_and_a_snapshot_only_once_it_is_made(
    nbytes: int, gradient: int, starts: list[tuple[str, float]]
) -> None:
    found = schedule(facts(nbytes, bus_bytes_per_s=1024.0, gradient_bytes=gradient))
    assert [(copy.way, copy.start_seconds) for held in found.rounds for copy in held] == starts


def test_many_copies_of_few_bytes_are_snapshotted_first() -> None:
    pieces = (Piece("large", 2048, 1), Piece("small", 64, 8))
    measured = facts(1, bus_bytes_per_s=1024.0, copy_seconds=0.125)
    measured = Facts(pieces, *(getattr(measured, name) for name in list(Facts.__dataclass_fields__)[1:]))
    found = schedule(measured)
    assert [(copy.name, copy.way) for copy in found.rounds[0]] == [("large", "direct"), ("small", "snapshot")]


@settings(deadline=None)
@given(anything(), spreads, peaks)
def test_every_byte_is_carried_once_in_all_rounds_together(measured: Facts, count: int | None, peak: int) -> None:
    found = schedule(measured, spread=count, peak_bytes_max=peak)
    for piece in measured.pieces:
        own = sorted((c.offset, c.nbytes) for held in found.rounds for c in held if c.name == piece.name)
        assert own[0][0] == 0
        assert all(one[0] + one[1] == two[0] for one, two in pairwise(own))
        assert sum(own[-1]) == piece.nbytes


@settings(deadline=None)
@given(anything(), spreads)
def test_pieces_are_cut_at_multiples_of_64_and_at_most_once_a_round(measured: Facts, count: int | None) -> None:
    for held in schedule(measured, spread=count).rounds:
        assert all(copy.offset % 64 == 0 for copy in held)
        assert sum(copy.offset > 0 for copy in held) <= 1


@settings(deadline=None)
@given(anything(), spreads)
def test_a_piece_has_one_version(measured: Facts, count: int | None) -> None:
    found = schedule(measured, spread=count)
    assert found.repaired == (measured.gradient_bytes > 0 and found.spread > 1)
    rounds = {(at, copy.name) for at, held in enumerate(found.rounds) for copy in held}
    if found.repaired:
        assert len(rounds) == len(measured.pieces)
    assert found.repaired or all(copy.way == "snapshot" for held in found.rounds[1:] for copy in held)


@settings(deadline=None)
@given(anything(), spreads, peaks)
def test_nothing_is_read_in_place_outside_its_window(measured: Facts, count: int | None, peak: int) -> None:
    found = schedule(measured, spread=count, peak_bytes_max=peak)
    for held in found.rounds:
        for copy in held:
            end = copy.start_seconds + copy.seconds
            assert copy.start_seconds < update(measured, found) + measured.optimizer_seconds + NEAR
            if copy.way == "direct":
                assert copy.start_seconds >= 0
                assert end <= update(measured, found) + NEAR
            elif found.repaired or found.spread == 1:
                assert copy.start_seconds >= measured.window_seconds - NEAR
                assert end <= update(measured, found) + measured.optimizer_seconds + NEAR


@settings(deadline=None)
@given(anything(), spreads, peaks)
def test_the_bus_carries_one_copy_at_a_time_and_no_more_than_it_can(
    measured: Facts, count: int | None, peak: int
) -> None:
    found = schedule(measured, spread=count, peak_bytes_max=peak)
    runs = [[(copy.start_seconds, copy) for copy in held] for held in found.rounds]
    for run in runs if found.repaired else [timeline(measured, found)]:
        for (start, one), (later, _) in pairwise(run):
            assert start + one.seconds <= later + NEAR
    carried = sum(copy.seconds for held in found.rounds for copy in held)
    there_is = found.spread * (measured.step_seconds + found.stall_seconds)
    assert carried + found.spread * measured.gradient_seconds <= there_is + NEAR


@settings(deadline=None)
@given(anything(), spreads, peaks)
def test_snapshots_stay_within_the_room_and_the_peak_allowed(measured: Facts, count: int | None, peak: int) -> None:
    found = schedule(measured, spread=count, peak_bytes_max=peak)
    assert found.peak_bytes <= peak
    if not found.repaired:
        begins, step = update(measured, found), measured.step_seconds
        drains = [(start, copy) for start, copy in timeline(measured, found) if copy.way == "snapshot"]
        for at, phase, free in ((k, start, free) for k in range(found.spread) for start, free in measured.room):
            now = begins + at * step + phase
            if now >= begins + (found.spread - 1) * step + measured.optimizer_seconds:
                break
            left = sum(c.nbytes - min(c.nbytes, max(0.0, now - s) * measured.bus_bytes_per_s) for s, c in drains)
            assert left <= free + found.peak_bytes + 1
    else:
        for held in found.rounds:
            nbytes = sum(copy.nbytes for copy in held if copy.way == "snapshot")
            assert nbytes <= min(found.snapshot_bytes, measured.room[0][1] + found.peak_bytes)


@settings(deadline=None)
@given(anything(bytes_min=1 << 16), st.integers(1, 4), st.floats(1.25, 4))
def test_a_faster_bus_never_costs_more(measured: Facts, count: int, times: float) -> None:
    values = {name: getattr(measured, name) for name in Facts.__dataclass_fields__}
    faster = Facts(**{**values, "bus_bytes_per_s": times * measured.bus_bytes_per_s})
    cut = count * 128 / measured.bus_bytes_per_s / measured.step_seconds  # what cutting at multiples of 64 may cost
    assert schedule(faster, spread=count).overhead <= schedule(measured, spread=count).overhead + cut + NEAR
    assert spread(faster) <= spread(measured)


@settings(deadline=None)
@given(anything(), st.integers(1, 4), peaks)
def test_more_rounds_or_more_memory_never_cost_more(measured: Facts, count: int, peak: int) -> None:
    found = schedule(measured, spread=count)
    cut = count * 128 / measured.bus_bytes_per_s / measured.step_seconds
    assert schedule(measured, spread=count + 1).overhead <= found.overhead + cut + NEAR
    assert schedule(measured, spread=count, peak_bytes_max=peak).overhead <= found.overhead + cut + NEAR


@settings(deadline=None)
@given(anything(pieces_max=40))
def test_in_regime_a_nothing_is_snapshotted_and_nothing_waits_for_the_state(measured: Facts) -> None:
    found = schedule(measured)
    if found.regime == "A":
        waits = max(0.0, measured.gradient_seconds - measured.optimizer_seconds - measured.forward_seconds)
        assert (found.spread, found.snapshot_bytes, found.stall_seconds) == (1, 0, waits)


@pytest.mark.parametrize("named", [{"spread": 0}, {"spread": -1}, {"peak_bytes_max": -1}])
def test_a_schedule_that_cannot_be_is_refused(named: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=r"at least 1 round|must not be negative"):
        schedule(facts(100), **named)
