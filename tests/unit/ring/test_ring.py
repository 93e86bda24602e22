"""A ring gives out its bytes in turn, takes them back in turn, and nobody takes half an entry for whole."""

import os

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from everstep import native
from everstep.errors import Damaged
from everstep.ring import ring as rings
from everstep.ring.areas import Areas
from everstep.ring.held import held, spans
from everstep.ring.pen import Pen
from everstep.ring.ring import E_DEVICE, REBASE, STATE, UPDATE, W_HEAD, W_KEEP, W_RELEASED, W_WRITERS, Ring
from everstep.ring.size import sizes
from everstep.ring.tally import Tally
from everstep.store.memory import Block


def made(nbytes: int = 1 << 16, entries: int = 64) -> tuple[Ring, Pen]:
    ring = rings.create(nbytes, entries=entries, present=False)
    return ring, Pen(ring)


def put(ring: Ring, pen: Pen, kind: int, step: int, data: bytes, *, low: int | None = None, area: int = -1) -> int:
    extent = pen.put([data])
    assert extent is not None
    sequence = pen.write(kind, step, [extent], low=low, area=area)
    ring.vouch(sequence, E_DEVICE)
    pen.vouch(sequence)
    return sequence


def test_an_entry_counts_once_both_sides_have_vouched_for_it() -> None:
    ring, pen = made()
    extent = pen.put([b"abc", b"def"])
    assert extent is not None
    sequence = pen.write(UPDATE, 7, [extent])
    assert not ring.whole(sequence)
    pen.vouch(sequence)
    assert not ring.whole(sequence)
    ring.vouch(sequence, E_DEVICE)
    assert ring.whole(sequence)
    assert [bytes(piece) for piece in ring.pieces(ring.read(sequence))] == [b"abcdef"]


@pytest.mark.parametrize("before", [0, 60])
def test_extents_that_follow_each_other_are_one_so_that_any_number_fits_an_entry(before: int) -> None:
    ring, pen = made(nbytes=64 * 64)
    for _ in range(before):
        sequence = put(ring, pen, UPDATE, 1, b"x" * 64)
        ring.say(W_RELEASED, sequence + 1)
        pen.keep_from(sequence + 1)
    taken = [pen.put([bytes([at]) * 64]) for at in range(40)]  # beyond the end of the ring, after many others
    extents = [extent for extent in (pen.put([b"head"]), *taken, pen.put([b"tail"])) if extent is not None]
    sequence, after = pen.write(UPDATE, 2, extents), put(ring, pen, UPDATE, 3, b"another")
    head, *rest = (bytes(piece) for piece in ring.pieces(ring.read(sequence)))
    assert head == b"head"
    assert b"".join(rest) == b"".join(bytes([at]) * 64 for at in range(40)) + b"tail"
    assert [bytes(piece) for piece in ring.pieces(ring.read(after))] == [b"another"]


def test_another_process_sees_the_same_through_the_descriptor() -> None:
    ring, pen = made()
    sequence = put(ring, pen, UPDATE, 3, b"xyz")
    other = Ring(Block(os.dup(ring.block.descriptor)))
    assert other.whole(sequence)
    assert bytes(other.pieces(other.read(sequence))[0]) == b"xyz"


def test_a_void_entry_is_whole_and_holds_nothing() -> None:
    ring, pen = made()
    extent = pen.put([b"x"])
    assert extent is not None
    sequence = pen.write(UPDATE, 1, [extent])
    pen.void(sequence)
    assert ring.whole(sequence)
    assert ring.read(sequence).kind == rings.VOID
    assert pen.unsaid == []


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(1, 9000), min_size=1, max_size=60), st.integers(0, 5))
def test_bytes_are_never_given_out_twice(lengths: list[int], lag: int) -> None:
    ring, pen = made(1 << 15)
    live: list[tuple[int, bytes]] = []
    for step, length in enumerate(lengths):
        data = bytes([step % 251]) * length
        while pen.put([data]) is None:
            assert live, "an empty ring has room"
            live.pop(0)
            first = live[0][0] if live else pen.next
            ring.say(W_RELEASED, first)
            ring.say(W_KEEP, first)
        pen.abandon()
        live.append((put(ring, pen, UPDATE, step, data), data))
        while len(live) > lag + 3:
            live.pop(0)
            ring.say(W_RELEASED, live[0][0])
            ring.say(W_KEEP, live[0][0])
        for sequence, wanted in live:
            assert bytes(ring.pieces(ring.read(sequence))[0]) == wanted


def test_memory_holds_the_newest_state_and_the_records_without_a_gap_after_it() -> None:
    ring, pen = made()
    assert held(ring) is None
    put(ring, pen, STATE, 4, b"{}", area=0)
    for step in (5, 6, 8):
        put(ring, pen, UPDATE, step, b"g")
    found = held(ring)
    assert found is not None
    assert (found.step, [entry.step for entry in found.records]) == (6, [5, 6])


def test_a_state_in_parts_needs_the_records_from_its_oldest_part_on() -> None:
    ring, pen = made()
    for step in (5, 6, 7):
        put(ring, pen, UPDATE, step, b"g")
    put(ring, pen, STATE, 7, b"{}", low=5, area=0)
    found = held(ring)
    assert found is not None
    assert (found.step, [entry.step for entry in found.records]) == (7, [6, 7])
    other, hand = made()
    put(other, hand, UPDATE, 7, b"g")
    put(other, hand, STATE, 7, b"{}", low=5, area=0)
    assert held(other) is None, "the record of step 6 is missing"


def test_a_step_that_only_a_base_holds_ends_what_records_lead_to() -> None:
    ring, pen = made()
    put(ring, pen, STATE, 1, b"{}", area=0)
    put(ring, pen, REBASE, 2, b"r")
    put(ring, pen, UPDATE, 3, b"g")
    found = held(ring)
    assert found is not None
    assert found.step == 1


def test_a_tally_keeps_what_memory_needs_and_nothing_before_it() -> None:
    ring, pen = made()
    tally = Tally(pen)
    for step in (1, 2, 3):
        tally.written(put(ring, pen, UPDATE, step, b"g"), UPDATE, step, step)
    assert tally.look(keeps=True) == -1
    state = put(ring, pen, STATE, 3, b"{}", low=2, area=0)
    tally.written(state, STATE, 3, 2)
    assert tally.look(keeps=True) == 3
    assert ring.word(W_KEEP) == 2, "the record of step 3 repairs what is of step 2"
    tally.written(put(ring, pen, UPDATE, 4, b"g"), UPDATE, 4, 4)
    assert tally.look(keeps=True) == 4


def test_a_rank_keeps_what_leads_to_the_steps_that_others_may_still_be_at() -> None:
    """Until they have come to the newest state as well, or the ring is full."""
    ring, pen = made(nbytes=64 * 8)
    ring.say(W_WRITERS, 2)
    tally = Tally(pen)
    ring.say(W_RELEASED, 1 << 30)
    for kind, step in ((STATE, 1), (UPDATE, 2), (STATE, 2), (UPDATE, 3)):
        tally.written(put(ring, pen, kind, step, b"x", area=0 if kind == STATE else -1), kind, step, step)
        tally.look(keeps=True)
    assert spans(ring) == ((1, 3), (2, 3))
    behind = held(ring, 1)
    assert behind is not None
    assert (behind.state.step, behind.step, behind.records) == (1, 1, ())
    assert tally.filling, "no other state is due"
    tally.stuck()  # someone wants room
    assert spans(ring) == ((2, 3),)
    for kind, step in ((STATE, 3), (UPDATE, 4), (UPDATE, 5)):
        assert spans(ring)[0][0] == 2
        tally.written(put(ring, pen, kind, step, b"x", area=1 if kind == STATE else -1), kind, step, step)
        assert tally.look(keeps=True) == step
    assert spans(ring) == ((3, 5),)


def test_without_a_memory_tier_as_well_a_record_counts_once_it_is_whole() -> None:
    ring, pen = made()
    tally = Tally(pen)
    tally.written(put(ring, pen, STATE, 1, b"s", area=0), STATE, 1, 1)
    extent = pen.put([b"g"])
    assert extent is not None
    sequence = pen.write(UPDATE, 2, [extent])
    tally.written(sequence, UPDATE, 2, 2)
    for _ in range(3):
        assert tally.look(keeps=False) == 1, "nobody has vouched for step 2"
    pen.vouch(sequence)
    ring.vouch(sequence, rings.E_DEVICE)
    assert tally.look(keeps=False) == 2


def test_a_record_whose_place_was_given_to_another_was_whole() -> None:
    ring, pen = made(entries=4)
    tally = Tally(pen)
    tally.written(put(ring, pen, STATE, 1, b"s", area=0), STATE, 1, 1)
    tally.look(keeps=False)
    for step in range(2, 12):
        tally.written(put(ring, pen, UPDATE, step, b"g"), UPDATE, step, step)
        ring.say(W_RELEASED, pen.next)
        pen.keep_from(pen.next)
    assert tally.look(keeps=False) == 11


def test_a_place_that_cannot_be_right_is_damage() -> None:
    ring, pen = made()
    sequence = put(ring, pen, UPDATE, 1, b"g")
    native.store(ring.place(sequence) + 8 * rings.E_EXTENTS, 1 << 40)
    with pytest.raises(Damaged, match="leaves it"):
        ring.read(sequence)
    with pytest.raises(Damaged, match="is not there"):
        ring.read(ring.word(W_HEAD) + 5)


def test_an_area_is_free_when_nobody_needs_it() -> None:
    ring, _ = made()
    areas = Areas(ring, lambda _number, _block: True, None)
    areas.count = 2
    first = areas.free(100, 200, -1)
    assert first is not None
    assert first.block.nbytes >= 200
    first.sequence = 5
    second = areas.free(100, 200, 5)
    assert second is not None
    assert second is not first, "the newest state stays"
    second.sequence = 9
    assert areas.free(100, 200, 5) is None, "one holds the newest, one is being filled"
    assert areas.free(100, 200, 9) is first
    ring.say(rings.W_ASSIGNED + second.number, 10)
    first.sequence = 12
    assert areas.free(100, 200, 12) is None, "the disk still reads the other"
    ring.say(rings.W_DONE + second.number, 10)
    assert areas.free(100, 200, 12) is second


@pytest.mark.parametrize(
    ("budget", "areas"),
    [
        (None, 3),
        (10_000, 0),
        ((1 << 20) + 249_999, 0),
        ((1 << 20) + 250_000, 1),
        (int(2.6 * (1 << 20)), 2),
        (5 << 20, 3),
    ],
)
def test_memory_is_shared_out_within_its_bound(budget: int | None, areas: int) -> None:
    found = sizes(100_000, 1 << 20, budget, 1 << 33)
    assert found.areas == areas
    if budget is not None:
        assert found.ring_bytes + found.areas * found.state_bytes <= budget


@pytest.mark.parametrize(("free", "areas"), [(37, 0), (39, 1), (62, 1), (84, 2), (120, 2), (170, 3)])
def test_the_memory_tier_gets_more_of_the_free_memory_before_it_is_given_up(free: int, areas: int) -> None:
    """1.5 B parameters: a state of 18.7 GB, gradients of 6.2 GB."""
    unit = 100 << 20
    found = sizes(62 * unit, 187 * unit, None, 10 * free * unit)
    assert found.areas == areas
    total = found.ring_bytes + found.areas * found.state_bytes
    assert total <= (7.5 if areas > 1 else 9) * free * unit
    if areas < 2:
        assert found.least_bytes > found.limit_bytes == (7.5 if areas else 9) * free * unit


def test_an_area_is_used_once_the_keeper_has_it_and_never_under_a_number_that_another_has() -> None:
    ring, _ = made()
    told: list[int] = []
    answers = False

    def share(number: int, _block: Block) -> bool:
        told.append(number)
        return answers

    areas = Areas(ring, share, None)
    areas.count = 2
    assert areas.free(100, 200, -1) is None
    assert areas.free(100, 200, -1) is None
    assert not areas.wait(0.01)
    assert set(told) == {0}, "one after the other, and none is made twice"
    answers = True
    assert areas.wait(1.0, all_of_them=True)
    assert areas.numbers == [0, 1]
    small = areas.free(100, 200, -1)
    answers = False
    assert small is not None
    assert areas.free(1 << 20, 1 << 20, -1) is None
    assert small.number not in areas.numbers, "the keeper may take its number for the new one from now on"
    answers = True
    large = areas.free(1 << 20, 1 << 20, -1)
    assert large is not None
    assert large.number == small.number
