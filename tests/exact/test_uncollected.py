"""A step is handed over without a collection of garbage: a full one looks at all that torch made, for 0.2 s."""

import gc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from everstep.capture import record, rng
from everstep.recording.recording import Recording
from tests.exact.program import build
from tests.exact.test_time_travel import opened


@pytest.fixture(autouse=True)
def collecting() -> Iterator[None]:
    was = gc.isenabled()
    gc.enable()
    yield
    gc.enable() if was else gc.disable()


def test_no_collection_while_a_step_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[str, bool]] = []

    def watch(owner: Any, name: str) -> None:
        done = getattr(owner, name)
        monkeypatch.setattr(owner, name, lambda *a, **k: (seen.append((name, gc.isenabled())), done(*a, **k))[1])

    program = build("adamw fused", "scheduler")
    with opened(tmp_path / "run", program) as run:
        run.resume()
        watch(record, "take")
        watch(rng, "take")  # before and after the optimizer's step
        watch(Recording, "_commit_record")
        program.step(0)
        assert gc.isenabled()
        run.commit()
        assert gc.isenabled()
    assert {name for name, _ in seen} == {"take", "_commit_record"}
    assert not any(enabled for _, enabled in seen)


def test_who_collects_by_hand_goes_on_doing_so(tmp_path: Path) -> None:
    program = build("adamw fused", "scheduler")
    with opened(tmp_path / "run", program) as run:
        run.resume()
        gc.disable()
        program.step(0)
        run.commit()
        assert not gc.isenabled()
