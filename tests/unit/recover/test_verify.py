"""Verification and rehearsal as functions: what is proved, what is left, what is noted."""

import shutil
from pathlib import Path

import msgspec
import pytest
import torch

import everstep
from everstep.recover import sound
from everstep.recover.inventory import survey
from everstep.recover.rehearse import Leg, legs, rehearse
from everstep.recover.verify import Report, verify
from everstep.store import base, document, names
from everstep.store.disk import existing, publish
from everstep.store.manifest import load_newest


def trained(path: Path, steps: int = 8) -> Path:
    """A run of a few steps with several bases and segments."""
    torch.manual_seed(1)
    net = torch.nn.Linear(6, 6)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    settings = everstep.Settings(segment_bytes=2048, base_log_bytes_max=3000, digest_every=3)
    with everstep.open(path, model=net, optimizer=optimizer, settings=settings) as run:
        run.resume()
        for _ in range(steps):
            net(torch.ones(2, 6)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            run.commit()
            run.wait()
    return path


def torn(path: Path) -> Path:
    """A run that lost power while a record was being written."""
    trained(path)
    disk = existing(str(path))
    manifest = load_newest(disk, 0)
    assert manifest is not None
    last = max(manifest.segments, key=lambda entry: entry.sequence)
    growing = msgspec.structs.replace(last, nbytes=None, last_step=None)
    reopened = msgspec.structs.replace(manifest, segments=(*manifest.segments[:-1], growing), state="open")
    publish(disk, names.manifest(0, manifest.epoch), document.pack("manifest", reopened))
    with (path / names.segment(0, last.epoch, last.sequence)).open("ab") as file:
        file.write(b"ESR1" + bytes(99))
    disk.release()
    return path


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained(tmp_path_factory.mktemp("verify") / "run")


@pytest.fixture
def run(original: Path, tmp_path: Path) -> Path:
    return shutil.copytree(original, tmp_path / "run")


def proved(path: Path) -> Report:
    disk = existing(str(path))
    try:
        return verify(disk, str(path))
    finally:
        disk.release()


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


def test_a_base_of_another_state_is_found_though_its_own_checksums_hold(run: Path) -> None:
    """A stale save: every file is intact, but the trainer had moved on. Only the log's digest can tell."""
    disk = existing(str(run))
    manifest = load_newest(disk, 0)
    assert manifest is not None
    older, newer = sorted(manifest.bases, key=lambda entry: entry.step)[-2:]
    index = base.load(disk, 0, older)
    (run / names.tensors(0, newer.step, newer.epoch)).write_bytes(
        (run / names.tensors(0, older.step, older.epoch)).read_bytes()
    )
    stale = document.pack("base", msgspec.structs.replace(index, step=newer.step, epoch=newer.epoch))
    (run / names.base(0, newer.step, newer.epoch)).write_bytes(stale)
    import xxhash

    entry = msgspec.structs.replace(newer, checksum=xxhash.xxh3_128_hexdigest(stale))
    bases = tuple(entry if b == newer else b for b in manifest.bases)
    publish(disk, names.manifest(0, manifest.epoch), document.pack("manifest", msgspec.structs.replace(manifest, bases=bases)))
    disk.release()
    assert [(d.kind, d.step) for d in proved(run).damages] == [("base", newer.step)]


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
