"""A run written by format 1 restores to what it held, for ever."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

import everstep
from everstep.capture.digests import digest
from everstep.types import printed
from tests.format import make_golden

GOLDEN = make_golden.HERE
EXPECTED: dict[str, Any] = json.loads((GOLDEN / "expected.json").read_text())


@pytest.mark.parametrize("step", EXPECTED)
def test_every_step_of_the_golden_run_restores_to_its_digests(step: str) -> None:
    found = everstep.restore(GOLDEN / "run", int(step))
    digests = dict(zip(found.tensors, map(printed, digest(list(found.tensors.values()))), strict=True))
    assert digests == EXPECTED[step]["tensors"]
    assert make_golden.told(found.context["state/notes"]) == EXPECTED[step]["notes"]


def test_the_golden_run_can_be_trained_on(tmp_path: Path) -> None:
    shutil.copytree(GOLDEN / "run", tmp_path / "run")
    seen: dict[str, Any] = {}
    assert make_golden.train(tmp_path / "run", seen, 1) == len(EXPECTED) + 1
    found = everstep.restore(tmp_path / "run")
    digests = dict(zip(found.tensors, map(printed, digest(list(found.tensors.values()))), strict=True))
    assert digests == seen[str(len(EXPECTED) + 1)]["tensors"]


def test_the_golden_run_has_two_epochs_several_segments_and_bases_and_both_kinds_of_record() -> None:
    names = {path.name for path in (GOLDEN / "run" / "w00000").iterdir()}
    assert sum(name.endswith(".seg") for name in names) >= 3
    assert sum(name.endswith(".safetensors") for name in names) == 2
    assert {name[:9] for name in names if name.startswith("e")} == {"e00000001", "e00000002"}
    assert sum(path.stat().st_size for path in GOLDEN.rglob("*")) < 200_000


def test_today_s_writer_writes_what_the_golden_writer_wrote(tmp_path: Path) -> None:
    """The same program gives the same records. Heads hold times and hosts; bodies do not."""
    from everstep.log.inventory import survey
    from everstep.recover.replay import read
    from everstep.store.disk import existing

    make_golden.train(tmp_path / "run", {}, make_golden.STEPS)
    heads = []
    for path in (GOLDEN / "run", tmp_path / "run"):
        disk = existing(str(path))
        records = list(read(disk, list(survey(disk, str(path)).records.values())))[: make_golden.STEPS]
        heads.append([(r.step, b.head.parameters, b.head.state, b.head.updates, b.head.groups) for r, b in records])
        disk.release()
    assert heads[0] == heads[1]
