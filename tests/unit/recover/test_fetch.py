"""What is fetched is what was written, into memory that is there; what is not asked for is not read."""

import os
from pathlib import Path

import pytest
import torch

from everstep.capture.digests import digest
from everstep.capture.tensors import describe, to_bytes
from everstep.errors import Damaged
from everstep.recover import stretches
from everstep.recover.fetch import Reading, fetch
from everstep.recover.stretches import Job, Seat
from everstep.store import base, names
from everstep.store.disk import LocalDisk, Source
from everstep.store.manifest import BaseEntry
from everstep.types import printed

TENSORS = {
    "model/w": torch.randn(37, 1000),
    "model/half": torch.randn(513).to(torch.bfloat16),
    "model/none": torch.zeros(0, 4),
    "optimizer/main/w/step": torch.tensor(3.0),
    "model/wide": torch.randn(300, dtype=torch.complex128),
    "model/flags": torch.arange(5001) % 3 == 0,
}


def written(home: Path) -> tuple[LocalDisk, BaseEntry]:
    disk = LocalDisk(str(home))
    disk.make_dir(names.writer(0))
    return disk, written_at(disk, 7)


def written_at(disk: LocalDisk, step: int) -> BaseEntry:
    held = [
        (describe(name, tensor), to_bytes(tensor), printed(pair))
        for (name, tensor), pair in zip(TENSORS.items(), digest(list(TENSORS.values())), strict=True)
    ]
    return base.write(disk, "00" * 16, 0, step, 1, held, base.Content((), {}, (), {}, "", "", {}))


def rooms() -> dict[str, Seat]:
    return {name: torch.empty_like(tensor) for name, tensor in TENSORS.items()}


@pytest.fixture(params=[(1 << 20, 32 << 20), (64, 256), (16, 16)], ids=["whole", "small pieces", "one element"])
def sizes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stretches, "PIECE_BYTES", request.param[0])
    monkeypatch.setattr(stretches, "STRETCH_BYTES", request.param[1])


@pytest.mark.usefixtures("sizes")
def test_every_byte_arrives_however_it_is_cut(tmp_path: Path) -> None:
    disk, entry = written(tmp_path)
    targets = rooms()
    fetch(disk, 0, entry, base.load(disk, 0, entry), targets)
    assert all(torch.equal(targets[name], tensor) for name, tensor in TENSORS.items())


@pytest.mark.usefixtures("sizes")
@pytest.mark.parametrize("place", [0.0, 0.3, 0.999])
def test_a_flipped_bit_is_named(tmp_path: Path, place: float) -> None:
    disk, entry = written(tmp_path)
    index = base.load(disk, 0, entry)
    stored = next(stored for stored in index.tensors if stored.tensor.name == "model/w")
    path = tmp_path / names.tensors(0, 7, 1)
    data = bytearray(path.read_bytes())
    data[index.header_bytes + stored.offset + int(place * stored.tensor.nbytes)] ^= 16
    path.write_bytes(data)
    with pytest.raises(Damaged, match="'model/w' fails its digest"):
        fetch(disk, 0, entry, index, rooms())


def test_what_is_not_asked_for_is_not_read(tmp_path: Path) -> None:
    disk, entry = written(tmp_path)
    index = base.load(disk, 0, entry)
    path = tmp_path / names.tensors(0, 7, 1)
    data = bytearray(path.read_bytes())
    for stored in index.tensors:
        if stored.tensor.name != "model/half":
            start = index.header_bytes + stored.offset
            data[start : start + stored.tensor.nbytes] = bytes(stored.tensor.nbytes)
    path.write_bytes(data)
    target = torch.empty(513, dtype=torch.bfloat16)
    fetch(disk, 0, entry, index, {"model/half": target})
    assert torch.equal(target, TENSORS["model/half"])


def test_a_file_cut_short_is_damage(tmp_path: Path) -> None:
    disk, entry = written(tmp_path)
    index = base.load(disk, 0, entry)
    path = tmp_path / names.tensors(0, 7, 1)
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(Damaged, match="cannot be read"):
        fetch(disk, 0, entry, index, rooms())


def test_a_target_of_another_size_is_refused(tmp_path: Path) -> None:
    disk, entry = written(tmp_path)
    with pytest.raises(ValueError, match="no place"):
        fetch(disk, 0, entry, base.load(disk, 0, entry), {"model/half": torch.empty(512, dtype=torch.bfloat16)})


@pytest.mark.usefixtures("sizes")
def test_a_damaged_base_leaves_those_that_are_read_beside_it(tmp_path: Path) -> None:
    disk, *_ = written(tmp_path)
    entries = [written_at(disk, step) for step in (8, 9, 10)]
    jobs = [Job(0, entry, base.load(disk, 0, entry), rooms()) for entry in entries]
    path = tmp_path / jobs[1].path
    path.write_bytes(path.read_bytes()[:-1])
    before = len(os.listdir("/proc/self/fd"))
    with Reading(disk) as reading:
        for job in jobs:
            reading.begin(job)
        reading.finish(jobs[0])
        with pytest.raises(Damaged, match="cannot be read"):
            reading.finish(jobs[1])
        reading.finish(jobs[2])
    for job in (jobs[0], jobs[2]):
        assert all(torch.equal(job.targets[name], tensor) for name, tensor in TENSORS.items())
    assert len(os.listdir("/proc/self/fd")) == before


def test_what_nobody_waits_for_is_not_read_to_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stretches, "STRETCH_BYTES", 16)
    disk, entry = written(tmp_path)
    job = Job(0, entry, base.load(disk, 0, entry), rooms())
    taken = []

    class Counting:
        def source(self, path: str) -> Source:
            source = disk.source(path)
            read = source.read_into
            source.read_into = lambda offset, target: (taken.append(offset), read(offset, target))[1]  # type: ignore[method-assign]
            return source

    with Reading(Counting()) as reading:
        reading.begin(job)
    assert len(taken) < len(list(stretches.cut(job, 1)))
