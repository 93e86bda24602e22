"""Results measured in parts come together only if they belong together."""

from typing import Any

import pytest

from bench.overhead.results import merged


def result(*rows: tuple[str, str, float], **other: Any) -> dict[str, Any]:
    ground = {"bench": "overhead", "quick": False, "machine": {"gpu": "a"}, "versions": {"torch": "2"}, "date": "1"}
    return {**ground, "rows": [{"case": c, "metric": m, "value": v} for c, m, v in rows], **other}


def test_a_later_row_replaces_the_earlier_one_in_its_place() -> None:
    old = result(("a", "x", 1.0), ("a", "y", 2.0))
    new = result(("b", "x", 4.0), ("a", "x", 3.0), date="2")
    assert merged(old, new) == result(("a", "x", 3.0), ("a", "y", 2.0), ("b", "x", 4.0), date="2")


def test_the_first_part_stands_alone() -> None:
    assert merged(None, result(("a", "x", 1.0))) == result(("a", "x", 1.0))


@pytest.mark.parametrize("other", [{"machine": {"gpu": "b"}}, {"versions": {"torch": "3"}}, {"quick": True}])
def test_parts_from_different_grounds_are_refused(other: dict[str, Any]) -> None:
    with pytest.raises(SystemExit, match="cannot be merged"):
        merged(result(), result(**other))
