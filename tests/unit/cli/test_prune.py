"""`prune`: what was asked to stay stays, bit for bit; what is left is a sound run; a crash anywhere harms nothing."""

import itertools
import os
from pathlib import Path

import msgspec
import pytest
import torch

import everstep
from everstep.store import names, prune
from everstep.store.disk import LocalDisk
from everstep.store.manifest import BaseEntry, Manifest, Segment, Term
from tests.unit.cli.runs import contents, flip, look, proved, torn, train

KEPT = {
    "last:1": ([(24, 26)], ["last:1"]),
    "last:3": ([(24, 26)], ["last:3"]),
    "last:4": ([(20, 26)], ["last:4"]),
    "bases:1": ([(24, 26)], ["bases:1"]),
    "bases:3": ([(16, 26)], ["bases:3"]),
    "both, the more of the two": ([(16, 26)], ["last:1", "bases:3"]),
    "every, and two bases by default": ([(0, 0), (13, 13), (20, 26)], ["every:10"]),
    "every beside last": ([(0, 0), (9, 9), (16, 16), (24, 26)], ["every:8", "last:2"]),
    "more than there is": ([(0, 26)], ["last:1000"]),
}


def steps_of(path: Path, epoch: int | None = None) -> list[tuple[int, int]]:
    return look(path, epoch).spans()


def same(one: dict[str, torch.Tensor], two: dict[str, torch.Tensor]) -> bool:
    return one.keys() == two.keys() and all(torch.equal(one[name], two[name]) for name in one)


@pytest.mark.parametrize("case", KEPT)
def test_what_was_asked_for_stays(run: Path, cli, case: str) -> None:
    spans, specs = KEPT[case]
    newest = everstep.restore(run).tensors
    options = list(itertools.chain.from_iterable(("--keep", spec) for spec in specs))
    planned = cli("prune", run, *options, "--dry-run", "--json").json()
    before = sum(map(len, contents(run).values()))
    assert cli("prune", run, *options).code == 0
    found = look(run)
    assert found.spans() == spans == [tuple(span) for span in planned["restorable_after"]]
    assert (found.damages, found.acknowledged) == ([], 26)
    assert proved(run).damages == []
    assert before - sum(map(len, contents(run).values())) >= planned["freed_bytes"] - 4096
    assert same(everstep.restore(run).tensors, newest)


def test_nothing_but_what_the_manifest_names_is_left(run: Path, cli) -> None:
    assert cli("prune", run, "--keep", "bases:1").code == 0
    found = look(run).manifest
    expected = prune.files(found) | {names.RUN, names.RESERVE, names.lease(0), names.manifest(0, found.epoch)}
    assert set(contents(run)) == expected


def test_training_goes_on_after_pruning_as_if_nothing_had_happened(
    run: Path, original: Path, cli, tmp_path: Path
) -> None:
    import shutil

    twin = shutil.copytree(original, tmp_path / "twin")
    assert cli("prune", run, "--keep", "last:2").code == 0
    train(run, 30)
    train(twin, 30)
    assert same(everstep.restore(run).tensors, everstep.restore(twin).tensors)
    assert look(run).manifest.epoch == look(twin).manifest.epoch + 1
    assert proved(run).damages == []


def test_older_branches_go_unless_asked_for(run: Path, cli) -> None:
    assert cli("prune", run, "--keep", "bases:100").code == 0
    assert steps_of(run) == [(0, 26)]
    listing = cli("ls", run, "--json").json()
    assert [branch["epoch"] for branch in listing["branches"]] == [3]
    assert [s["state"] for s in listing["segments"]].count("cut") == 1, "the segment that both branches share"
    assert steps_of(run, 2) == [(0, 15)]
    assert proved(run).notes == []


def test_an_older_branch_that_is_kept_can_be_restored_bit_for_bit(run: Path, cli) -> None:
    before = {step: everstep.restore(f"{run}#2", step).tensors for step in (16, 17, 20)}
    assert cli("prune", run, "--keep", "last:1", "--keep", "branches").code == 0
    assert steps_of(run)[-1] == (24, 26)
    assert look(run).damages == [], "a gap in the current branch's own history is not damage"
    assert steps_of(run, 2) == [(13, 20)]
    assert all(same(everstep.restore(f"{run}#2", step).tensors, held) for step, held in before.items())
    assert proved(run).damages == []


def test_a_damaged_base_is_not_relied_on(run: Path, cli) -> None:
    newest = everstep.restore(run).tensors
    flip(run / "w00000/b000000000024-e00000003.safetensors", -20)
    done = cli("prune", run, "--keep", "last:1", "--json").json()
    assert "b000000000024" in done["notes"][0]
    assert steps_of(run) == [(20, 26)]
    assert same(everstep.restore(run).tensors, newest)


def test_a_damaged_log_is_not_pruned(run: Path, cli) -> None:
    flip(run / "w00000/e00000003-00000003.seg", 130)
    before = contents(run)
    done = cli("prune", run, "--keep", "last:1")
    assert done.code == 2
    assert "Nothing was pruned" in done.err
    assert contents(run) == before


@pytest.mark.parametrize(
    "spec", ["last", "last:", "last:0", "last:-1", "last:x", "bases:²", "everything", "branches:1", ""]
)
def test_a_spec_that_means_nothing_is_refused(run: Path, cli, spec: str) -> None:
    before = contents(run)
    assert cli("prune", run, "--keep", spec).code == 2
    assert contents(run) == before


def test_one_branch_alone_is_not_pruned(run: Path, cli) -> None:
    assert "whole run" in cli("prune", f"{run}#2", "--keep", "last:1").err


def test_a_run_that_lost_power_keeps_its_newest_step(tmp_path: Path, cli) -> None:
    path = torn(tmp_path / "run")
    assert cli("prune", path, "--keep", "bases:1").code == 0
    found = look(path)
    assert (found.newest, found.acknowledged, found.damages) == (8, 8, [])


def test_an_epoch_that_recorded_nothing_is_no_branch() -> None:
    def term(epoch: int, parent: int | None, step: int) -> Term:
        return Term(epoch, parent, step, 0, "", "", 1)

    terms = (term(1, None, 0), term(2, 1, 9), term(3, 1, 9))
    segments = (Segment(1, 0, 0, 9, 500), Segment(2, 0, 9, 9, 128), Segment(3, 0, 9))
    manifest = Manifest("0" * 32, 0, 1, 3, "open", 9, terms, segments, (BaseEntry(0, 1, 1, ""),))
    assert prune.branches(manifest) == []
    longer = msgspec.structs.replace(manifest, segments=(segments[0], Segment(2, 0, 9, 11, 900), segments[2]))
    assert prune.branches(longer) == [2]


class Crash(BaseException):
    """The process ends here."""


CHANGES = ("create", "write", "sync", "rename", "link", "remove", "sync_dir", "mark")


@pytest.mark.parametrize("keep", ["last:1", "branches"])
def test_a_crash_anywhere_leaves_a_sound_run_and_pruning_can_be_repeated(
    original: Path, tmp_path: Path, cli, monkeypatch: pytest.MonkeyPatch, keep: str
) -> None:
    import shutil

    from everstep.cli import prune as verb

    newest = look(original).newest
    for limit in range(500):
        path = shutil.copytree(original, tmp_path / f"run{limit}")
        calls = 0
        with monkeypatch.context() as patch:
            for name in CHANGES:
                real = getattr(LocalDisk, name)

                def counted(self: LocalDisk, *args: object, real: object = real, limit: int = limit) -> object:
                    nonlocal calls
                    calls += 1
                    if calls > limit:
                        raise Crash
                    return real(self, *args)  # type: ignore[operator]

                patch.setattr(LocalDisk, name, counted)
            try:
                verb.prune(str(path), [keep], dry_run=False, as_json=False)
                break
            except Crash:
                pass
        found = look(path)
        assert (found.newest, found.damages, found.acknowledged) == (newest, [], 26), limit
        if limit % 7 == 0:
            assert proved(path).damages == [], limit
            assert cli("prune", path, "--keep", keep).code == 0, limit
            assert look(path).newest == newest
        shutil.rmtree(path)
    assert 20 < limit < 499, "every change was interrupted once"
    assert os.listdir(path)
