"""The acknowledged step can be restored from what is durable, and no newer one could be promised."""

from hypothesis import given, settings
from hypothesis import strategies as st

from everstep.keeper.frontier import Frontier


class Model:
    """Everything that is durable, and by brute force what can be restored from it."""

    def __init__(self, start: int, *, based: bool) -> None:
        self.bases = {start} if based else set()
        self.kinds: dict[int, bool] = {}
        self.logged = start

    def restorable(self, step: int) -> bool:
        """A base at or before the step, and updates without a gap between."""
        while step not in self.bases:
            if self.kinds.get(step) is not False:
                return False
            step -= 1
        return True

    @property
    def newest(self) -> int:
        return max((s for s in {*self.kinds, *self.bases} if s <= self.logged and self.restorable(s)), default=-1)


@st.composite
def histories(draw: st.DrawFn) -> tuple[int, bool, list[tuple[str, int, bool]]]:
    """What a keeper does: records in order, each base after the one before it, at any delay against the log."""
    start, based = draw(st.integers(0, 5)), draw(st.booleans())
    log: list[tuple[str, int, bool]] = []
    bases = [] if based else [start]
    step = start
    for _ in range(draw(st.integers(0, 12))):
        rebase = draw(st.booleans())
        step += draw(st.integers(1, 3)) if rebase else 1
        log.append(("log", step, rebase))
        if rebase or draw(st.booleans()):
            bases.append(step)
    written = [("base", step, False) for step in bases]
    order: list[tuple[str, int, bool]] = []
    while log or written:
        order.append((log if log and (not written or draw(st.booleans())) else written).pop(0))
    return start, based, order


@settings(deadline=None, max_examples=500, print_blob=True)
@given(histories())
def test_it_is_the_newest_step_that_can_be_restored_and_never_goes_back(history: object) -> None:
    start, based, events = history  # type: ignore[misc]
    frontier, model, before = Frontier(start, based=based), Model(start, based=based), -1
    for kind, step, rebase in events:
        if kind == "log":
            frontier.logged(step, rebase=rebase)
            model.kinds[step], model.logged = rebase, step
        else:
            frontier.based(step)
            model.bases.add(step)
        now = frontier.acknowledged
        assert now >= before
        assert now == -1 or model.restorable(now)
        assert now == model.newest
        assert all(model.restorable(s) for first, last in frontier.spans for s in range(first, last + 1))
        before = now


def test_nothing_is_acknowledged_before_the_first_base() -> None:
    frontier = Frontier(0, based=False)
    frontier.logged(1, rebase=False)
    assert frontier.acknowledged == -1
    frontier.based(0)
    assert frontier.acknowledged == 1


def test_a_step_kept_as_a_base_is_not_acknowledged_before_that_base() -> None:
    frontier = Frontier(0, based=True)
    frontier.logged(1, rebase=False)
    frontier.logged(2, rebase=True)
    frontier.logged(3, rebase=False)
    assert frontier.acknowledged == 1
    frontier.based(2)
    assert frontier.acknowledged == 3


def test_a_base_does_not_acknowledge_beyond_the_log() -> None:
    frontier = Frontier(0, based=True)
    frontier.based(5)
    assert frontier.acknowledged == 0


def test_what_was_left_behind_can_still_be_restored() -> None:
    frontier = Frontier(0, based=True)
    for step, rebase in ((1, False), (2, False), (7, True), (8, False), (12, True), (13, False)):
        frontier.logged(step, rebase=rebase)
    frontier.based(7)
    assert frontier.spans == ((0, 2), (7, 8))
    frontier.based(12)
    assert frontier.spans == ((0, 2), (7, 8), (12, 13))


def test_bases_that_follow_each_other_are_one_stretch() -> None:
    frontier = Frontier(0, based=True)
    for step in (1, 2, 3):
        frontier.logged(step, rebase=True)
        frontier.based(step)
    assert frontier.spans == ((0, 3),)


def test_a_log_that_goes_on_says_what_was_there_before() -> None:
    frontier = Frontier(20, based=False, spans=((3, 9), (12, 15)))
    assert frontier.acknowledged == 15
    frontier.logged(21, rebase=False)
    assert frontier.spans == ((3, 9), (12, 15))
    frontier.based(21)
    assert frontier.spans == ((3, 9), (12, 15), (21, 21))
    again = Frontier(15, based=True, spans=((3, 9), (12, 15)))
    again.logged(16, rebase=False)
    assert again.spans == ((3, 9), (12, 16))


def test_bases_that_were_written_while_the_log_was_stuck_count_once_it_goes_on() -> None:
    frontier = Frontier(0, based=True)
    frontier.based(10)
    frontier.based(14)
    assert frontier.spans == ((0, 0),)
    frontier.logged(10, rebase=True)
    assert frontier.spans == ((0, 0), (10, 10))
    frontier.logged(14, rebase=True)
    assert frontier.spans == ((0, 0), (10, 10), (14, 14))
