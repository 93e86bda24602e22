"""`prune` of a run that several writers hold together: each leaves what all of them need to restore what stays."""

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

import everstep
from everstep.cli import prune as verb
from everstep.errors import RunInUse, StepNotHeld
from everstep.recover.cohort import stand
from everstep.recover.verify import verify
from everstep.store.disk import LocalDisk, existing
from everstep.store.keep import Wishes
from tests.cluster.programs import Program, differences
from tests.cluster.two import STEPS, opened, train


def restored(path: Path, step: int) -> dict[str, torch.Tensor]:
    return everstep.restore(path, step=step).tensors


def sizes(path: Path) -> int:
    return sum(file.stat().st_size for file in path.rglob("*") if file.is_file())


@pytest.mark.parametrize(("keep", "oldest"), [("last:3", STEPS - 2), ("bases:1", None), ("bases:2", None)])
def test_the_steps_that_were_asked_for_stay_bit_for_bit(
    run: Path, original: Path, keep: str, oldest: int | None
) -> None:
    before = sizes(run)
    verb.prune(str(run), [keep], dry_run=False, as_json=False)
    assert sizes(run) < before
    assert not verify(existing(str(run)), str(run)).damages
    stood = stand(existing(str(run)), str(run))
    assert stood is not None
    assert stood.step == STEPS
    held = []
    for step in range(STEPS + 1):
        try:
            assert differences(restored(run, step), restored(original, step)) == []
            held.append(step)
        except StepNotHeld:
            pass
    assert held == list(range(held[0], STEPS + 1))
    assert 0 < held[0] <= (STEPS if oldest is None else oldest)


def test_single_bases_stay_only_where_every_writer_has_one(run: Path) -> None:
    disk = existing(str(run))
    found = verb._survey(disk, str(run))
    shared = set.intersection(*({entry.step for entry in one.bases} for one in found.writers))
    own = set.union(*({entry.step for entry in one.bases} for one in found.writers))
    assert shared < own
    planned = verb._plan(found, Wishes(last=1, every=1), verb.Sound(disk))
    anchors = [max(entry.step for entry in one.bases) for one in found.writers]
    for manifest, anchor in zip(planned, anchors, strict=True):
        assert {entry.step for entry in manifest.bases if entry.step < anchor} == {s for s in shared if s < anchor}


def test_writers_of_a_larger_world_go_once_nothing_needs_them(run: Path) -> None:
    program = Program("single", seed=3)
    train(run, program, STEPS + 6, 8_000)  # alone now
    whole = program.whole()
    verb.prune(str(run), ["bases:1"], dry_run=False, as_json=False)
    left = [file.name for file in (run / "w00001").iterdir()]
    assert not [name for name in left if name.endswith((".seg", ".safetensors"))]
    again = Program("single", seed=4)
    with opened(run, again) as resumed:
        assert resumed.resume() == STEPS + 6
    assert differences(again.whole(), whole) == []


def test_a_trainer_of_any_writer_is_left_alone(run: Path) -> None:
    disk = existing(str(run))
    held = disk.lock("w00001/lease", b'{"pid":7,"host":"far"}')
    assert held is not None
    with pytest.raises(RunInUse, match="process 7"):
        verb.prune(str(run), ["last:1"], dry_run=False, as_json=False)
    disk.close(held)
    verb.prune(str(run), ["last:1"], dry_run=False, as_json=False)


class Crash(BaseException):
    """The process ends here."""


def test_a_crash_between_two_writers_leaves_a_whole_run(
    original: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    newest = restored(original, STEPS)
    for limit in range(300):
        path, calls = shutil.copytree(original, tmp_path / f"run{limit}"), 0
        with monkeypatch.context() as patch:
            for name in ("create", "write", "sync", "rename", "link", "remove", "sync_dir", "mark"):
                real = getattr(LocalDisk, name)

                def counted(self: LocalDisk, *args: object, real: Any = real, limit: int = limit) -> object:
                    nonlocal calls
                    calls += 1
                    if calls > limit:
                        raise Crash
                    return real(self, *args)

                patch.setattr(LocalDisk, name, counted)
            try:
                verb.prune(str(path), ["last:1"], dry_run=False, as_json=False)
                break
            except Crash:
                pass
        if limit % 5 == 0:
            assert differences(restored(path, STEPS), newest) == [], limit
            verb.prune(str(path), ["last:1"], dry_run=False, as_json=False)
            assert differences(restored(path, STEPS), newest) == [], limit
        shutil.rmtree(path)
    assert 20 < limit < 299, "every change was interrupted once"
