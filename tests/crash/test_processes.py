"""C1 and W2 in small, in a process of their own: children are forked, and a test process may have used torch."""

import os
import subprocess
import sys

import pytest

KILLS = "from tests.crash.killing import kill_trials; found = kill_trials(3, 20)"
LIVES = "from tests.crash.lives import story; found = story(5, 6)"
CUTS = "from tests.crash.power import power_cuts; found = power_cuts(3, 12, plainly={})"


def _python(code: str) -> subprocess.CompletedProcess[str]:
    program = f"import sys; {code}; print(found); sys.exit(bool(found.violations))"
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", program]
    return subprocess.run(command, capture_output=True, text=True, env=environment, check=False, timeout=240)


def test_a_killed_training_resumes_exactly_at_or_after_what_was_acknowledged() -> None:
    done = _python(KILLS)
    assert done.returncode == 0, done.stdout + done.stderr


def test_whichever_ranks_go_on_from_whatever_is_left_they_go_on_from_what_was_trained() -> None:
    done = _python(LIVES)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.crash
@pytest.mark.parametrize("plainly", [True, False])
def test_a_power_cut_keeps_what_was_acknowledged(plainly: bool) -> None:
    done = _python(CUTS.format(plainly))
    assert done.returncode == 0, done.stdout + done.stderr
