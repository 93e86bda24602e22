"""The table of exactness: a run that is stopped and resumed equals one that never was, to the last bit."""

import functools
from pathlib import Path

import pytest

import everstep
from everstep.keeper import launch
from tests.beside import keep_here
from tests.exact.program import FEATURES, OPTIMIZERS, STEPS, Program, build, fingerprint


@pytest.fixture(autouse=True)
def beside(monkeypatch: pytest.MonkeyPatch) -> None:
    """Four hundred keepers, each a process, would take half of the time."""
    monkeypatch.setattr(launch, "start", keep_here())


@functools.cache
def uninterrupted(optimizer: str, feature: str) -> tuple[dict[str, bytes], list[list[int]]]:
    """The same program without everstep: we must not only resume right but also leave training alone."""
    program = build(optimizer, feature)
    for at in range(STEPS):
        program.step(at)
    return fingerprint(program), program.seen


def trained(
    path: Path, optimizer: str, feature: str, until: int, settings: everstep.Settings
) -> tuple[Program, everstep.Run]:
    program = build(optimizer, feature)
    chosen = program.optimizers if len(program.optimizers) > 1 else program.optimizers["main"]
    run = everstep.open(path, model=program.model, optimizer=chosen, state=program.state, settings=settings)
    for at in range(run.resume(), until):
        program.step(at)
        run.commit()
    run.wait(timeout=60)
    return program, run


@pytest.mark.parametrize("feature", FEATURES)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_a_resumed_run_equals_an_uninterrupted_one(optimizer: str, feature: str, tmp_path: Path) -> None:
    settings = everstep.Settings(digest_every=4, base_log_bytes_max=9000 if feature in ("clip", "frozen") else None)
    seen: list[list[int]] = []
    for until in (1, 4, 9, STEPS):  # 4 follows a step that the scaler skipped, 9 lies in the second pass over the data
        program, run = trained(tmp_path / "run", optimizer, feature, until, settings)
        seen += program.seen
        run.close()
    expected, order = uninterrupted(optimizer, feature)
    assert fingerprint(program) == expected
    assert seen == order, "a sample was skipped or repeated"


@pytest.mark.parametrize(
    ("optimizer", "feature", "rules"),
    [
        ("sgd", "plain", "native rules"),
        ("sgd momentum", "two groups", "native rules"),
        ("adam", "clip", "native rules"),
        ("adamw single", "scheduler", "native rules"),
        ("adamw foreach", "batch norm", "native rules"),
        ("adamw fused", "accumulation", "native rules"),
        ("adamw fused", "bf16", "the optimizer itself"),
        ("adamw fused", "scaler skip", "the optimizer itself"),
        ("rmsprop", "plain", "the optimizer itself"),
        ("our own", "plain", "the optimizer itself"),
    ],
)
def test_the_ledger_says_which_rules_replayed(optimizer: str, feature: str, rules: str, tmp_path: Path) -> None:
    trained(tmp_path / "run", optimizer, feature, 6, everstep.Settings())[1].close()
    _, run = trained(tmp_path / "run", optimizer, feature, 6, everstep.Settings())
    assert run.ledger is not None
    assert (run.ledger.replay, run.ledger.records, run.ledger.notes) == (rules, 6, ())
    assert {item.status for item in run.ledger} == {"restored"}
    run.close()
