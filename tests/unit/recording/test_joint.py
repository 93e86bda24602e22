"""What ranks make of what each of them has in memory."""

from pathlib import Path

import msgspec
import pytest

from everstep.recording.joint import Decision, Offer, _decide
from everstep.store.disk import created

THIRD, FOURTH = (3, 2), (4, 2)
"""Two cohorts of two writers."""


def decided(home: Path, *offers: tuple[int, int, tuple[int, int]]) -> tuple[bool, bool, int]:
    disk = created(str(home))
    said = [msgspec.json.encode(Offer(7, *offer)).decode() for offer in offers]
    found = msgspec.json.decode(_decide(disk, str(home), None, said), type=Decision)
    disk.release()
    return found.memory, found.goes_on, found.cohort.step


@pytest.mark.parametrize(
    ("offers", "expected"),
    [
        (((3, 9, THIRD), (5, 8, THIRD)), (True, True, 8)),
        (((3, 9, THIRD), (9, 9, THIRD)), (True, True, 9)),
        (((3, 8, THIRD), (9, 9, THIRD)), (False, False, 0)),
        (((3, 9, THIRD), (-1, -1, (0, 1))), (False, False, 0)),
        (((3, 9, THIRD), (5, 8, FOURTH)), (False, False, 0)),
        (((3, 9, THIRD),), (True, False, 9)),
        (((3, 9, (0, 1)),), (True, True, 9)),
    ],
    ids=[
        "a step that both have", "the newest of one", "no step in common", "one has none", "other branches",
        "fewer than there were: another log begins", "alone, as before",
    ],
)  # fmt: skip
def test_memory_is_taken_up_by_all_or_by_none(
    offers: tuple[tuple[int, int, tuple[int, int]], ...], expected: tuple[bool, bool, int], tmp_path: Path
) -> None:
    assert decided(tmp_path / "run", *offers) == expected
