"""Ranks that hold the same share the writing: all of it is written, about evenly, and by those that agree."""

from hypothesis import given, settings
from hypothesis import strategies as st

from everstep.layout.replicas import alike, mine

NAMES = st.lists(st.text("abcdef.", min_size=1, max_size=6), unique=True, min_size=1, max_size=30)


@settings(deadline=None, max_examples=300, print_blob=True)
@given(NAMES, st.integers(1, 9), st.data())
def test_together_they_write_everything_and_no_optimizer_is_without_a_parameter(
    names: list[str], count: int, data: st.DataObject
) -> None:
    sizes = {name: data.draw(st.integers(0, 1000)) for name in names}
    homes = {name: data.draw(st.sampled_from(["main", "other", "frozen"])) for name in names}
    stepped = [[name for name in names if homes[name] == home] for home in ("main", "other")]
    shares = [mine(sizes, stepped, at, count) for at in range(count)]
    parts = min([count, *(len(group) for group in stepped if group)])
    assert frozenset().union(*shares) == set(names)
    assert sum(len(share) for share in shares[:parts]) == len(names), "nobody writes what another writes"
    assert all(shares[at] == shares[at % parts] for at in range(count))
    for group in filter(None, stepped):
        assert all(share & set(group) for share in shares)
    assert shares == [mine(dict(reversed(sizes.items())), stepped, at, count) for at in range(count)], "in any order"


def test_the_bytes_are_shared_about_evenly() -> None:
    sizes = {f"h.{at}.{name}": nbytes for at in range(12) for name, nbytes in (("up", 400), ("down", 400), ("norm", 1))}
    sizes["embed"] = 900
    loads = [sum(sizes[name] for name in mine(sizes, [list(sizes)], at, 4)) for at in range(4)]
    assert max(loads) - min(loads) <= 400


def test_ranks_are_alike_if_all_of_them_say_so() -> None:
    assert alike([((0, 1, 2), "x")] * 3) == [(0, 3), (1, 3), (2, 3)]
    assert alike([((0, 2), "x"), ((1, 3), "y"), ((0, 2), "x"), ((1, 3), "y")]) == [(0, 2), (0, 2), (1, 2), (1, 2)]


def test_whoever_holds_something_else_or_is_not_known_writes_all_it_has() -> None:
    assert alike([((0, 1, 2), "x"), ((0, 1, 2), "z"), ((0, 1, 2), "x")]) == [(0, 2), (0, 1), (1, 2)]
    assert alike([((0, 1), "x"), ((1,), "x")]) == [(0, 1), (0, 1)]
    assert alike([((), "x"), ((), "x")]) == [(0, 1), (0, 1)]
    assert alike([((1,), "x"), ((0,), "x"), ((0, 9), "x")]) == [(0, 1), (0, 1), (0, 1)]
