"""What ranks make of what each of them has in memory."""

import pytest

from everstep.recording.offers import Offer, Verdict, agreed

THIRD, FOURTH = (3, 2), (4, 2)
"""Two cohorts of two writers."""
NOTHING = Verdict()


@pytest.mark.parametrize(
    ("offers", "on_disk", "expected"),
    [
        ((Offer(((3, 9),), THIRD), Offer(((5, 8),), THIRD)), -1, Verdict(8, goes_on=True)),
        ((Offer(((3, 9),), THIRD), Offer(((9, 9),), THIRD)), 9, Verdict(9, goes_on=True)),
        ((Offer(((3, 8),), THIRD), Offer(((9, 9),), THIRD)), -1, NOTHING),
        ((Offer(((3, 8),), THIRD), Offer(((4, 9), (9, 9)), THIRD)), -1, Verdict(8, goes_on=True)),
        ((Offer(((3, 9),), THIRD), Offer()), -1, NOTHING),
        ((Offer(((3, 9),), THIRD), Offer(((5, 8),), FOURTH)), -1, NOTHING),
        ((Offer(((3, 9),), THIRD), Offer(((5, 8),), THIRD)), 9, NOTHING),
        ((Offer(((3, 9),), THIRD, in_step=True), Offer(((5, 8),), THIRD, in_step=True)), -1, NOTHING),
        ((Offer(((3, 8),), THIRD, in_step=True), Offer(((3, 9), (9, 9)), THIRD)), -1, Verdict(8, goes_on=True)),
        ((Offer(((3, 9),), THIRD),), -1, Verdict(9, goes_on=False)),
        ((Offer(((3, 9),), (0, 1)),), -1, Verdict(9, goes_on=True)),
    ],
    ids=[
        "a step that both have", "the newest of one, and of the disk", "no step in common",
        "one has just taken a state that the other has not come to", "one has none", "other branches",
        "the disk has more", "from several states, but replayed in step", "in step, from the state before",
        "fewer than there were: another log begins", "alone, as before",
    ],
)  # fmt: skip
def test_memory_is_taken_up_by_all_or_by_none(offers: tuple[Offer, ...], on_disk: int, expected: Verdict) -> None:
    assert agreed(offers, lambda: on_disk) == expected
