"""Ranks that agree: everyone hears what rank 0 decides, and if it refuses, all do at once."""

import itertools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch.distributed as dist

from everstep import company as companies
from everstep.company import Alone, Together, company, meet
from everstep.errors import Damaged, Misuse, StoreFailed

WORLD = 3


@pytest.fixture
def ranks(monkeypatch: pytest.MonkeyPatch) -> list[Together]:
    """A world in one process: every rank has opened as many runs as the others."""
    monkeypatch.setattr(companies, "_opened", itertools.repeat(0))
    store = dist.HashStore()
    return [Together(rank, WORLD, store) for rank in range(WORLD)]


def all_meet(ranks: list[Together], decide: Callable[[list[str]], str]) -> list[object]:
    def one(rank: Together) -> object:
        try:
            return meet(rank, "key", decide, f"from {rank.rank}")
        except Exception as refused:  # noqa: BLE001 it is what is asked for
            return refused

    with ThreadPoolExecutor(WORLD) as pool:
        return list(pool.map(one, ranks))


def test_everyone_hears_what_rank_0_makes_of_what_all_said(ranks: list[Together]) -> None:
    assert all_meet(ranks, " and ".join) == ["from 0 and from 1 and from 2"] * WORLD


def test_if_rank_0_refuses_all_do_with_its_reason(ranks: list[Together]) -> None:
    def refuse(_said: list[str]) -> str:
        raise Damaged("segment 7 is torn", intact=6)

    first, *others = all_meet(ranks, refuse)
    assert isinstance(first, Damaged)
    assert all(isinstance(other, Damaged) and "segment 7 is torn" in str(other) for other in others)
    assert [other.intact for other in others if isinstance(other, Damaged)] == [6, 6]


def test_what_is_no_refusal_of_ours_becomes_one(ranks: list[Together]) -> None:
    def fail(_said: list[str]) -> str:
        raise OSError("no such file")

    first, *others = all_meet(ranks, fail)
    assert type(first) is OSError
    assert all(isinstance(other, StoreFailed) and "no such file" in str(other) for other in others)


def test_a_rank_that_hears_nothing_says_so(ranks: list[Together], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(companies, "WAIT_SECONDS", 0.05)
    with pytest.raises(StoreFailed, match="rank 1 waited"):
        ranks[1].hear("never")


def test_an_empty_decision_is_one(ranks: list[Together]) -> None:
    assert all_meet(ranks, lambda _: "") == [""] * WORLD


def test_who_is_alone_has_nobody_to_ask() -> None:
    assert company() == Alone(0, 1)
    with pytest.raises(Misuse):
        Alone().hear("anything")
