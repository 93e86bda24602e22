"""Writers that do not talk to each other write bases of the same steps, whatever the disk of each takes."""

import itertools
import random

from hypothesis import given, settings
from hypothesis import strategies as st

from everstep.tune.beat import Beat


def bases(took: list[int], steps: int, *, shared: bool = True) -> list[int]:
    """The steps of one writer's bases, which take so many steps in turn."""
    beat, found, free, durations = Beat(shared=shared), [], 0, itertools.cycle(took)
    for step in range(1, steps):
        if beat.busy and step >= free:
            beat.ended(step)
        if not beat.busy and beat.on(step):
            found.append(step)
            beat.began(step)
            free = step + next(durations)
    return found


@settings(deadline=None, max_examples=200)
@given(st.lists(st.integers(1, 60), min_size=2, max_size=6), st.integers(0, 2**32))
def test_writers_meet_again_and_again(typical: list[int], seed: int) -> None:
    rng = random.Random(seed)
    durations = [[max(1, round(each * rng.uniform(0.7, 1.3))) for _ in range(17)] for each in typical]
    common = set.intersection(*(set(bases(took, 4000)) for took in durations))
    longest = max(map(max, durations))
    gaps = [after - before for before, after in itertools.pairwise([0, *sorted(common), 4000])]
    assert max(gaps) <= 8 * longest + 8


def test_one_that_takes_about_a_power_of_two_keeps_its_beat() -> None:
    late = [step for step in bases([15, 17, 16, 15, 17], 2000) if step >= 100]
    assert late == list(range(128, 2000, 32))


def test_a_writer_that_is_alone_takes_a_base_whenever_it_can() -> None:
    assert bases([7], 50, shared=False) == [1, 8, 15, 22, 29, 36, 43]


def test_a_disk_that_has_become_fast_is_used_again() -> None:
    beat = Beat(shared=True)
    beat.began(0)
    beat.ended(100)
    assert beat.every == 128
    for step in range(128, 128 * 9, 128):
        beat.began(step)
        beat.ended(step + 1)
    assert beat.every == 2
