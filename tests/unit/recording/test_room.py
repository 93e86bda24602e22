"""Ranks of one host, or of one job on it, share what memory there is; others have their own."""

import pytest

from everstep.recording.room import shared
from everstep.store.spare import Spare


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ("800 a", 800),
        ("800 a\n800 a\n790 a\n800 a", 197),
        ("800 a\n500 b\n800 a", 400),
        ("800 b\n800 c\n800 a", 800),
    ],
)
def test_a_rank_gets_its_part_of_the_least_that_was_seen(said: str, expected: int) -> None:
    assert shared(Spare(800, "a"), said) == expected


def test_a_name_may_have_several_words() -> None:
    assert shared(Spare(8, "host 17"), "8 host 17\n8 host 18") == 8
