"""Things that happen to a program while it trains: failures, interrupts, takeovers, moves, clocks."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import everstep
from everstep.capture import snapshot
from everstep.capture.context import Context
from everstep.capture.hooks import Hooks
from everstep.errors import Fenced
from everstep.keeper.link import Link
from everstep.recover import onto
from everstep.ring.pen import Pen
from tests.faults.conftest import Small

Make = Callable[..., Small]


def test_a_capture_that_fails_costs_the_step_not_the_training(
    tmp_path: Path, small: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = small()
    with program.open(tmp_path / "run") as run:
        run.resume()
        program.step()
        run.commit()
        run.wait(timeout=30)

        def no_memory(_pen: Pen, _nbytes: int) -> None:
            raise MemoryError("none left")

        with monkeypatch.context() as patched:
            patched.setattr(Pen, "take", no_memory)
            program.step()
            assert run.commit() == 2
        assert run.health.not_recorded == 1
        assert any("MemoryError" in text for text in run.health.warnings)
        program.step()
        run.commit()
        run.wait(timeout=30)
    again = small(seed=3)
    with again.open(tmp_path / "run") as run:
        assert run.resume() == 3
        assert again.bits() == program.bits()


@pytest.mark.parametrize(
    "where", [(Hooks, "reset"), (Hooks, "handed_over"), (Link, "put_record"), (Context, "changed")]
)
def test_an_interrupt_inside_commit_costs_at_most_that_step(
    where: tuple[type, str], tmp_path: Path, small: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a notebook people interrupt, and go on."""
    program = small()
    with program.open(tmp_path / "run") as run:
        run.resume()
        for _ in range(3):
            program.step()
            run.commit()
        run.wait(timeout=30)
        real = getattr(*where)

        def interrupted(*args: Any, **options: Any) -> None:
            real(*args, **options)
            raise KeyboardInterrupt

        program.step()
        with monkeypatch.context() as patched:
            patched.setattr(*where, interrupted)
            with pytest.raises(KeyboardInterrupt):
                run.commit()
        program.step()
        last = run.commit()
        program.step()
        assert run.commit() == last + 1
        run.wait(timeout=30)
    again = small(seed=3)
    with again.open(tmp_path / "run") as run:
        assert run.resume() == last + 1
        assert again.bits() == program.bits()


def test_an_exception_in_the_training_step_keeps_what_was_committed(tmp_path: Path, small: Make) -> None:
    program = small()
    with pytest.raises(ZeroDivisionError), program.open(tmp_path / "run") as run:  # noqa: PT012 a whole loop fails
        run.resume()
        for at in range(5):
            program.step()
            if at == 3:
                raise ZeroDivisionError
            run.commit()
    with small(seed=1).open(tmp_path / "run") as run:
        assert run.resume() == 3


def test_an_optimizer_step_that_fails_half_way_becomes_a_base(tmp_path: Path, small: Make) -> None:
    program = small()
    with program.open(tmp_path / "run") as run:
        run.resume()
        program.step()
        run.commit()
        real, program.optimizer.param_groups[0]["betas"] = program.optimizer.param_groups[0]["betas"], None
        with pytest.raises(TypeError):
            program.step()
        program.optimizer.param_groups[0]["betas"] = real
        program.step()
        run.commit()
        run.wait(timeout=30)
        assert any("an optimizer step did not finish" in text for text in run.health.warnings)
    again = small(seed=2)
    with again.open(tmp_path / "run") as run:
        assert run.resume() == 2
        assert again.bits() == program.bits()


def test_a_writer_that_was_fenced_off_never_acknowledges_again(tmp_path: Path, small: Make) -> None:
    first, second = small(), small(seed=8)
    old = first.open(tmp_path / "run")
    old.resume()
    for _ in range(3):
        first.step()
        old.commit()
    old.wait(timeout=30)
    with second.open(tmp_path / "run", settings=everstep.Settings(take_over=True)) as new:
        assert new.resume() == 3
        assert second.bits() == first.bits()
        first.step()
        assert not old._link.wait(4, 30)
        assert (old.health.state, old.acknowledged()) == ("fenced", 3)
        with pytest.raises(Fenced, match="another process took this run over"):
            old.commit()
        second.step()
        new.commit()
        new.wait(timeout=30)
    old.close()
    third = small(seed=9)
    with third.open(tmp_path / "run") as run:
        assert run.resume() == 4
        assert third.bits() == second.bits()


def test_a_run_that_goes_on_elsewhere_begins_with_a_base(
    tmp_path: Path, small: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another CPU or torch may round otherwise: what it trains must not depend on replaying what it did not."""
    program = small()
    with program.open(tmp_path / "run") as run:
        run.resume()
        program.step()
        run.commit()
    moved = {**snapshot.versions(), "cpu": "another"}
    for module in (snapshot, onto):
        monkeypatch.setattr(module, "versions", lambda: moved)
    with program.open(tmp_path / "run") as run:
        assert run.resume() == 1
        program.step()
        run.commit()
        run.wait(timeout=30)
        assert any("cpu AVX" in text and "is now another" in text for text in run.health.warnings)
        assert run.health.bases == 1


def test_a_clock_that_goes_backwards_changes_nothing(
    tmp_path: Path, small: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = iter(range(10**9, 0, -3600))
    monkeypatch.setattr(time, "time", lambda: float(next(now)))
    monkeypatch.setattr(time, "perf_counter", lambda: float(next(now)))
    program = small()
    with program.open(tmp_path / "run") as run:
        run.resume()
        for _ in range(5):
            program.step()
            run.commit()
    again = small(seed=6)
    with again.open(tmp_path / "run") as run:
        assert run.resume() == 5
        assert again.bits() == program.bits()
