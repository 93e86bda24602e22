"""Few pieces are packed as well as can be; many are never packed worse than the bound says."""

import itertools
import math

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from everstep.tune.facts import Piece
from everstep.tune.rounds import EXACT_PIECES_MAX, Packer, Price, Round

sizes = st.integers(1, 12)
ROUND = 20.0


def over(pieces: Round) -> Price:
    """A second for a second above what a round can carry, an eighth of one for the last quarter of it."""
    carried = sum(piece.nbytes for piece in pieces)
    return Price(cost(carried), max(0.0, carried - ROUND), carried)


def cost(carried: float) -> float:
    return max(0.0, carried - ROUND) + 0.125 * max(0.0, min(carried, ROUND) - 0.75 * ROUND)


def packer(nbytes: list[int]) -> Packer:
    return Packer(tuple(Piece(str(at), n) for at, n in enumerate(nbytes)), lambda piece: float(piece.nbytes), over)


def priced(packing: tuple[Round, ...]) -> Price:
    return sum(map(over, packing), Price())


@settings(deadline=None)
@given(st.lists(sizes, min_size=1, max_size=5), st.integers(1, 3))
def test_no_packing_of_few_pieces_costs_less(nbytes: list[int], count: int) -> None:
    pieces = packer(nbytes).pieces
    every = (
        tuple(tuple(piece for piece, at in zip(pieces, where, strict=True) if at == k) for k in range(count))
        for where in itertools.product(range(count), repeat=len(pieces))
    )
    assert priced(packer(nbytes).pack(count)) == min(map(priced, every))


@settings(deadline=None)
@given(st.lists(sizes, min_size=1, max_size=30), st.integers(1, 40))
def test_every_piece_is_in_one_round(nbytes: list[int], count: int) -> None:
    if len(nbytes) <= EXACT_PIECES_MAX:
        nbytes, count = nbytes[:6], min(count, 8)
    packed = packer(nbytes).pack(count)
    assert len(packed) == count
    assert sorted(itertools.chain(*packed), key=lambda piece: int(piece.name)) == list(packer(nbytes).pieces)


def test_the_longest_are_dealt_first_so_that_the_short_ones_fill_up() -> None:
    packed = packer([1] * EXACT_PIECES_MAX + [EXACT_PIECES_MAX]).pack(2)
    assert [sum(piece.nbytes for piece in pieces) for pieces in packed] == [EXACT_PIECES_MAX] * 2


@settings(deadline=None)
@given(st.lists(sizes, min_size=EXACT_PIECES_MAX + 1, max_size=60), st.integers(2, 9))
def test_no_round_of_many_carries_more_than_the_mean_and_the_longest(nbytes: list[int], count: int) -> None:
    for pieces in packer(nbytes).pack(count):
        assert sum(piece.nbytes for piece in pieces) <= sum(nbytes) / count + max(nbytes)


@settings(deadline=None)
@given(st.lists(sizes, min_size=EXACT_PIECES_MAX + 1, max_size=60), st.integers(2, 9))
def test_many_pieces_cost_less_than_a_longest_piece_per_round_above_the_best(nbytes: list[int], count: int) -> None:
    """No packing costs less than rounds that all carry the mean, since the price rises ever more steeply."""
    least = count * cost(sum(nbytes) / count)
    assert priced(packer(nbytes).pack(count)).seconds <= least + count * max(nbytes)


@settings(deadline=None)
@given(st.lists(sizes, min_size=EXACT_PIECES_MAX + 1, max_size=60))
def test_many_pieces_take_no_more_rounds_than_if_each_lost_its_longest_piece(nbytes: list[int]) -> None:
    packed = packer(nbytes).fewest(1, 0.0)
    assert priced(packed).stall_seconds == 0
    assert len(packed) <= math.ceil(sum(nbytes) / (ROUND - max(nbytes)))


@settings(deadline=None)
@given(st.lists(st.integers(1, 30), min_size=1, max_size=5))
def test_only_pieces_too_long_for_a_round_are_waited_for(nbytes: list[int]) -> None:
    packed = packer(nbytes).fewest(1, 0.0)
    assert priced(packed).stall_seconds == sum(max(0.0, n - ROUND) for n in nbytes)
    assume(len(packed) > 1)
    assert priced(packer(nbytes).pack(len(packed) - 1)).stall_seconds > priced(packed).stall_seconds
