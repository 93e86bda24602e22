"""Which pieces are copied in which round, when the state does not fit into one.

A piece has one version, so it goes into one round whole: packing, which is hard. A few pieces are packed exactly, by
dynamic programming over their subsets. Many are dealt out, longest first, to the round that has least: then no round
carries more than the mean and the longest piece, while in no packing do all carry less than the mean. So the rounds are
no more than `ceil(total / (round - longest))`; and as a round's cost rises with what it carries, ever more steeply but
by at most a second for a second, the total is less than one longest piece per round above the best (where copies cost
nothing besides their bytes). With pieces of some MiB that is nothing, so nothing cleverer was tried.
"""

import heapq
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from everstep.tune.facts import Piece

EXACT_PIECES_MAX = 10
"""Up to so many pieces the best packing is found; the pairs of subsets, 3 ** 10, take a tenth of a second per round."""


@dataclass(frozen=True, slots=True, order=True)
class Price:
    """What rounds cost, in order of weight: seconds of training, how many of them waiting, bytes added to the peak."""

    seconds: float = 0.0
    stall_seconds: float = 0.0
    peak_bytes: int = 0

    def __add__(self, other: "Price") -> "Price":
        return Price(
            self.seconds + other.seconds,
            self.stall_seconds + other.stall_seconds,
            max(self.peak_bytes, other.peak_bytes),
        )


Round = tuple[Piece, ...]
Packing = tuple[Price, tuple[Round, ...]]


@dataclass(frozen=True, slots=True)
class Packer:
    """Packs pieces, `seconds` of bus time each, into rounds that cost what `price` says."""

    pieces: Round
    seconds: Callable[[Piece], float]
    price: Callable[[Round], Price]

    def pack(self, rounds: int) -> tuple[Round, ...]:
        """All pieces in so many rounds, at the least cost."""
        return next(self._packings(rounds))[1]

    def fewest(self, at_least: int, slop: float) -> tuple[Round, ...]:
        """All pieces in the fewest rounds in which training waits for none but those too long for a round of their own.

        With a round for each piece it does, so this ends.
        """
        alone = sum(self.price((piece,)).stall_seconds for piece in self.pieces)
        packings = self._packings(min(at_least, len(self.pieces)))
        return next(
            rounds
            for price, rounds in packings
            if price.stall_seconds <= alone + slop or len(rounds) >= len(self.pieces)
        )

    def _packings(self, rounds: int) -> Iterator[Packing]:
        """The best packing into `rounds`, then into one more, and so on."""
        if rounds <= 1:
            yield self.price(self.pieces), (self.pieces,)
        more = self._exact if len(self.pieces) <= EXACT_PIECES_MAX else self._dealt
        yield from more(max(2, rounds))

    def _exact(self, rounds: int) -> Iterator[Packing]:
        """Subsets are bits. A round takes the lowest piece that is left, with any of the others."""
        whole = (1 << len(self.pieces)) - 1
        prices = [self.price(self._subset(bits)) for bits in range(whole + 1)]
        best, taken = prices, [list(range(whole + 1))]
        for count in itertools.count(1):
            if count >= rounds:
                yield best[whole], self._taken(taken)
            choices = [min(_splits(bits, prices, best), default=(Price(), 0)) for bits in range(whole + 1)]
            best = [price for price, _ in choices]
            taken.append([part for _, part in choices])

    def _subset(self, bits: int) -> Round:
        return tuple(piece for at, piece in enumerate(self.pieces) if bits >> at & 1)

    def _taken(self, taken: list[list[int]]) -> tuple[Round, ...]:
        """The rounds that led to the best price, the last choice first."""
        left, rounds = len(taken[0]) - 1, []
        for parts in reversed(taken):
            rounds.append(self._subset(parts[left]))
            left ^= parts[left]
        return tuple(rounds)

    def _dealt(self, rounds: int) -> Iterator[Packing]:
        longest_first = sorted(self.pieces, key=self.seconds, reverse=True)
        for count in itertools.count(rounds):
            carried: list[tuple[float, int]] = [(0.0, at) for at in range(count)]
            dealt: list[list[Piece]] = [[] for _ in range(count)]
            for piece in longest_first:
                seconds, at = carried[0]
                heapq.heapreplace(carried, (seconds + self.seconds(piece), at))
                dealt[at].append(piece)
            packed = tuple(map(tuple, dealt))
            yield sum(map(self.price, packed), Price()), packed


def _splits(bits: int, prices: list[Price], best: list[Price]) -> Iterator[tuple[Price, int]]:
    """Every part of `bits` for this round that has its lowest piece, with what all of `bits` then costs."""
    lowest = bits & -bits
    others = part = bits ^ lowest
    while bits:
        yield prices[part | lowest] + best[others ^ part], part | lowest
        if not part:
            return
        part = (part - 1) & others
