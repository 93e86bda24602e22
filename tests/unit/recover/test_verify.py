"""Verification and rehearsal as functions: what is proved, what is left, what is noted."""

import shutil
from pathlib import Path

import msgspec
import pytest
import torch
import xxhash

from everstep.log.inventory import survey
from everstep.recover import sound
from everstep.recover.rehearse import Leg, legs, rehearse
from everstep.recover.verify import verify
from everstep.store import base, document, names
from everstep.store.disk import existing, publish
from everstep.store.manifest import load_newest
from tests.unit.cli.runs import proved, torn, trained


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained(tmp_path_factory.mktemp("verify") / "run")


@pytest.fixture
def run(original: Path, tmp_path: Path) -> Path:
    return shutil.copytree(original, tmp_path / "run")


def replayed(path: Path) -> list[Leg]:
    disk = existing(str(path))
    try:
        found = survey(disk, str(path))
        return list(rehearse(disk, found, legs(found, set()), lambda _: None))
    finally:
        disk.release()


def test_everything_is_read(run: Path) -> None:
    seen: list[tuple[int, int]] = []
    disk = existing(str(run))
    report = verify(disk, str(run), tick=lambda done, total: seen.append((done, total)))
    disk.release()
    assert report.damages == []
    assert (report.records, report.branches[0].spans) == (8, [(0, 8)])
    assert seen[-1][0] <= seen[-1][1]
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)


def test_a_torn_tail_is_a_note(tmp_path: Path) -> None:
    report = proved(torn(tmp_path / "run"))
    assert report.damages == []
    assert len(report.notes) == 1
    assert report.branches[0].spans == [(0, 8)]


def test_what_is_damaged_is_left_out_of_what_is_proved(run: Path) -> None:
    steps = sorted(int(p.name[1:13]) for p in (run / "w00000").glob("b*.safetensors"))
    path = next((run / "w00000").glob(f"b{steps[-1]:012d}*.safetensors"))
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    report = proved(run)
    assert [(d.kind, d.step) for d in report.damages] == [("base", steps[-1])]
    assert report.branches[0].spans == [(0, 8)], "an older base and its records still lead everywhere"


def test_a_missing_segment_is_damage(run: Path) -> None:
    (run / "w00000/e00000001-00000001.seg").unlink()
    report = proved(run)
    assert [d.kind for d in report.damages] == ["segment"]
    assert report.branches[0].spans[0][1] < 8


def stale(run: Path) -> int:
    """Put the state of an older base under the newest one's name, with checksums that hold; returns its step."""
    disk = existing(str(run))
    manifest = load_newest(disk, 0)
    assert manifest is not None
    older, newer = sorted(manifest.bases, key=lambda entry: entry.step)[-2:]
    index = base.load(disk, 0, older)
    held = (run / names.tensors(0, older.step, older.epoch)).read_bytes()
    (run / names.tensors(0, newer.step, newer.epoch)).write_bytes(held)
    text = document.pack("base", msgspec.structs.replace(index, step=newer.step, epoch=newer.epoch))
    (run / names.base(0, newer.step, newer.epoch)).write_bytes(text)
    entry = msgspec.structs.replace(newer, checksum=xxhash.xxh3_128_hexdigest(text))
    bases = tuple(entry if b == newer else b for b in manifest.bases)
    changed = msgspec.structs.replace(manifest, bases=bases)
    publish(disk, names.manifest(0, manifest.epoch), document.pack("manifest", changed))
    disk.release()
    return newer.step


def test_a_base_of_another_state_is_found_though_its_own_checksums_hold(run: Path) -> None:
    """A stale save: every file is intact, but the trainer had moved on. Only the log's digest can tell."""
    step = stale(run)
    assert [(d.kind, d.step) for d in proved(run).damages] == [("base", step)]


def test_replay_that_does_not_end_in_the_next_base_fails(run: Path) -> None:
    step = stale(run)
    into = next(leg for leg in replayed(run) if leg.last == step)
    assert into.failed
    assert into.agree
    assert f"than base {step} holds" in str(into.by_torch)


def test_tensors_are_digested_in_pieces(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sound, "CHUNK_BYTES", 16)
    assert proved(run).damages == []


def test_native_rules_and_torch_agree(run: Path) -> None:
    found = replayed(run)
    assert sum(leg.records for leg in found) == 8
    assert all(leg.agree and not leg.failed and leg.skipped is None and leg.native_updates for leg in found)
    assert [leg.to_base for leg in found[:-1]] == [True] * (len(found) - 1)


def test_a_wrong_optimizer_is_caught_by_replay(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    step = torch.optim.SGD.step

    def other(self: torch.optim.SGD) -> None:
        step(self)
        with torch.no_grad():
            self.param_groups[0]["params"][0][0, 0] += 1

    monkeypatch.setattr(torch.optim.SGD, "step", other)
    found = replayed(run)
    assert all(leg.by_torch is not None and not leg.agree for leg in found)
    assert not any(leg.failed for leg in found), "native rules still give what was recorded"
    monkeypatch.setattr("everstep.recover.rehearse.Rules", lambda *_: None)
    assert all(leg.failed for leg in replayed(run))
