"""G3: the tester is tested. Every safety taken out is missed, and with all of them in place nothing is."""

import pytest

from tests.crash.bugs import BUGS
from tests.crash.scenarios import SCENARIOS


@pytest.mark.parametrize("name", BUGS)
def test_a_seeded_bug_is_caught(name: str) -> None:
    scenario, bug = BUGS[name]
    with bug():
        assert SCENARIOS[scenario]() is not None


@pytest.mark.parametrize("name", sorted(SCENARIOS.keys() - {"explored", "refused_then_cut"}))
def test_a_scenario_finds_nothing_in_the_unmodified_code(name: str) -> None:
    assert SCENARIOS[name]() is None


def test_there_are_at_least_25_seeded_bugs() -> None:
    assert len(BUGS) >= 25
