"""What is fetched is what was written, into memory that is there; what is not asked for is not read."""

from pathlib import Path

import pytest
import torch

from everstep.capture.digests import digest
from everstep.capture.tensors import describe, to_bytes
from everstep.errors import Damaged
from everstep.recover import fetch as fetching
from everstep.recover.fetch import fetch
from everstep.store import base, names
from everstep.store.disk import LocalDisk
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
    held = [
        (describe(name, tensor), to_bytes(tensor), printed(pair))
        for (name, tensor), pair in zip(TENSORS.items(), digest(list(TENSORS.values())), strict=True)
    ]
    content = base.Content((), {}, (), {}, "", "", {})
    return disk, base.write(disk, "00" * 16, 0, 7, 1, held, content)


@pytest.fixture(params=[(1 << 20, 32 << 20), (64, 256), (16, 16)], ids=["whole", "small pieces", "one element"])
def sizes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetching, "PIECE_BYTES", request.param[0])
    monkeypatch.setattr(fetching, "STRETCH_BYTES", request.param[1])


@pytest.mark.usefixtures("sizes")
def test_every_byte_arrives_however_it_is_cut(tmp_path: Path) -> None:
    disk, entry = written(tmp_path)
    targets = {name: torch.empty_like(tensor) for name, tensor in TENSORS.items()}
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
        fetch(disk, 0, entry, index, {name: torch.empty_like(tensor) for name, tensor in TENSORS.items()})


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
        fetch(disk, 0, entry, index, {name: torch.empty_like(tensor) for name, tensor in TENSORS.items()})


def test_a_target_of_another_size_is_refused(tmp_path: Path) -> None:
    disk, entry = written(tmp_path)
    with pytest.raises(ValueError, match="no place"):
        fetch(disk, 0, entry, base.load(disk, 0, entry), {"model/half": torch.empty(512, dtype=torch.bfloat16)})
