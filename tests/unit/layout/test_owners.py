"""Whom a rank asks, in which order, and when it stops."""

from everstep.layout.owners import order, read_from
from everstep.types import Box


def rows(low: int, high: int) -> dict[str, list[Box]]:
    return {"w": [Box((low, 0), (high, 4))]}


def test_a_rank_asks_its_own_writer_and_then_its_neighbours() -> None:
    assert order(0, 2, 4) == [0, 1, 2, 3]
    assert order(1, 2, 4) == [1, 3, 2, 0]
    assert order(5, 8, 2) == [0, 1]
    for rank in range(16):
        assert sorted(order(rank, 16, 7)) == list(range(7))


def test_nobody_is_asked_for_what_is_there_already() -> None:
    asked: list[int] = []

    def held(writer: int) -> dict[str, list[Box]]:
        asked.append(writer)
        return rows(100 * writer, 100 * writer + 100)

    assert read_from(rows(800, 1000), held, order(4, 5, 10)) == ([4, 9, 8], {})
    assert asked == [4, 9, 8]
    assert read_from({}, held, order(0, 1, 10)) == ([0], {})


def test_what_nobody_holds_is_said_after_everyone_was_asked() -> None:
    used, absent = read_from(rows(0, 500), lambda at: rows(100 * at, 100 * at + 100), range(4))
    assert (used, absent) == ([0, 1, 2, 3], {"w": [Box((400, 0), (500, 4))]})


def test_few_of_many_are_looked_at_where_both_cut_alike() -> None:
    width = 16_384
    for world in (16_384, 8_192, 4_096, 65_536):
        for rank in (0, world // 3, world - 1):
            asked: list[int] = []

            def held(writer: int, asked: list[int] = asked) -> dict[str, list[Box]]:
                asked.append(writer)
                return rows(64 * writer, 64 * writer + 64)

            size = 64 * width // world
            _, absent = read_from(rows(size * rank, size * rank + size), held, order(rank, world, width))
            assert not absent
            assert len(asked) <= 8
