"""P7: a paused old writer is ignored after a takeover, wherever it was paused."""

import pytest

from tests.crash.interleave import ALL, Play, lengths


@pytest.mark.parametrize("work", ["record", "roll", "base", "rebase"])
def test_a_writer_paused_before_it_acknowledges_is_fenced(work: str) -> None:
    calls, _ = lengths(work)
    for at in range(calls):
        play = Play(work)
        before = play.truth.promised[1]
        assert play.perform((("A", at), ("B", ALL), ("A", ALL))) is None
        last_look = at >= calls - 1 or play.truth.states[2].get(play.truth.promised[1]) is not None
        assert play.truth.promised[1] == before or last_look


def test_late_bytes_of_an_old_writer_are_ignored() -> None:
    play = Play("record")
    assert play.perform((("A", 0), ("B", ALL), ("A", ALL))) is None
    assert play.parties["A"].fenced or play.truth.promised[1] == 2
    assert play.truth.promised[2] == 3


def test_a_writer_that_slept_through_two_takeovers_does_not_bring_its_manifest_back_to_life() -> None:
    calls, _ = lengths("roll")
    for at in range(calls):
        assert Play("roll").perform((("A", at), ("B", ALL), ("C", ALL), ("A", ALL))) is None
