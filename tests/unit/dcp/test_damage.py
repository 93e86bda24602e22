"""A changed, cut, lost or foreign byte is refused, and the message names file, tensor and place."""

import pickle
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
import torch
import torch.distributed.checkpoint as torch_dcp

from everstep.dcp import names, record
from everstep.dcp.record import Record
from everstep.store.disk import LocalDisk
from tests.unit.dcp.states import blank, differences, load, made, refused, save


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    save(tmp_path / "a", made(1))
    return tmp_path / "a"


def data(folder: Path) -> Path:
    (found,) = folder.glob("*.distcp")
    return found


def flip(path: Path, at: int) -> None:
    content = bytearray(path.read_bytes())
    content[at] ^= 0x10
    path.write_bytes(content)


def held(folder: Path) -> Record:
    disk = LocalDisk(str(folder))
    _, found = record.load(disk, str(folder))
    disk.release()
    assert found is not None
    return found


def place(folder: Path, name: str) -> record.Place:
    said = held(folder)
    return said.values.get(name) or next(entry.chunks[0][1] for entry in said.tensors if entry.name == name)


REGIONS: dict[str, Callable[[record.Place], int]] = {
    "first byte": lambda p: p.offset,
    "head of the archive": lambda p: p.offset + 40,
    "middle": lambda p: p.offset + p.nbytes // 2,
    "directory of the archive": lambda p: p.offset + p.nbytes - 60,
    "last byte": lambda p: p.offset + p.nbytes - 1,
}


@pytest.mark.parametrize("region", REGIONS)
@pytest.mark.parametrize("name", ["model.large", "model.matrix", "step", "epoch"])
def test_a_flipped_bit_anywhere_in_an_item_is_refused(name: str, region: str, saved: Path) -> None:
    at = REGIONS[region](place(saved, name))
    flip(data(saved), at)
    block = at // record.BLOCK_BYTES * record.BLOCK_BYTES
    found = refused(lambda: load(saved), rf"bytes {block} to \d+ fail their checksum")
    assert data(saved).name in found
    assert repr(name) in found or "more" in found


def test_a_flip_does_not_concern_tensors_in_other_blocks(saved: Path) -> None:
    flip(data(saved), data(saved).stat().st_size - 1)
    refused(lambda: load(saved), "fail their checksum")
    assert load(saved, state={"epoch": -1}) == {"epoch": 1}


def test_torchs_own_reader_loads_the_flip(saved: Path) -> None:
    """The reason for all of this; should it ever fail, torch checks for itself."""
    at = place(saved, "model.large")
    flip(data(saved), at.offset + at.nbytes // 2)
    assert differences(load(saved, torch_dcp.FileSystemReader(saved)), made(1)) == ["/model/large"]


def test_nothing_of_the_state_is_changed_by_a_checkpoint_with_a_file_missing(saved: Path) -> None:
    gone = data(saved)
    gone.unlink()
    state = blank()
    found = refused(lambda: load(saved, state=state), f"{gone.name} is missing")
    assert "it holds 'epoch'" in found
    assert differences(state, blank()) == []


@pytest.mark.parametrize("cut", [1, 100, 4 << 20])
def test_a_cut_file_is_refused_with_both_lengths(cut: int, saved: Path) -> None:
    whole = data(saved).read_bytes()
    data(saved).write_bytes(whole[:-cut])
    refused(lambda: load(saved), rf"has {len(whole) - cut} bytes, {len(whole)} were written")


def test_a_damaged_index_is_refused_and_the_data_said_to_be_unconcerned(saved: Path) -> None:
    flip(saved / names.METADATA, 50)
    refused(lambda: load(saved), r"\.metadata is not the one .* The data files are not concerned")


def test_a_damaged_record_is_refused(saved: Path) -> None:
    (path,) = saved.glob("everstep-*.json")
    flip(path, path.stat().st_size // 2)
    refused(lambda: load(saved), "checksum|not a readable")


def test_a_lost_record_is_not_taken_for_a_checkpoint_of_torch(saved: Path) -> None:
    (path,) = saved.glob("everstep-*.json")
    path.unlink()
    refused(lambda: load(saved), r"everstep-\*\.json is missing")


def test_a_record_of_a_newer_format_is_refused_by_name(saved: Path) -> None:
    (path,) = saved.glob("everstep-*.json")
    path.write_bytes(path.read_bytes().replace(b'"format":1', b'"format":2', 1))
    refused(lambda: load(saved), "upgrade everstep")


def shorter(said: Record) -> Record:
    """Without the only chunk of one tensor."""
    tensors = [msgspec.structs.replace(e, chunks=()) if e.name == "model.matrix" else e for e in said.tensors]
    return msgspec.structs.replace(said, tensors=tuple(tensors))


LIES: dict[str, tuple[Callable[[Record], Record], str]] = {
    "a chunk is missing": (shorter, r"1517 of 1517 elements of 'model.matrix' are in no part: \[0:37, 0:41\]"),
    "a file elsewhere": (
        lambda r: msgspec.structs.replace(r, files=(msgspec.structs.replace(r.files[0], name="../x.distcp"),)),
        "no data file of a save",
    ),
    "too few checksums": (
        lambda r: msgspec.structs.replace(r, files=(msgspec.structs.replace(r.files[0], checksums=()),)),
        "0 checksums for",
    ),
    "a place outside": (
        lambda r: msgspec.structs.replace(r, values={**r.values, "epoch": record.Place(0, 1 << 40, 5)}),
        "outside the data files",
    ),
    "a file that is not listed": (
        lambda r: msgspec.structs.replace(r, values={**r.values, "epoch": record.Place(7, 0, 5)}),
        "outside the data files",
    ),
    "another's files to remove": (
        lambda r: msgspec.structs.replace(r, replaces=("config.json",)), "files that are not torch's"
    ),
    "an unknown type": (
        lambda r: msgspec.structs.replace(
            r, tensors=tuple(msgspec.structs.replace(e, dtype="nn") for e in r.tensors)
        ),
        "which this torch does not know",
    ),
}  # fmt: skip


@pytest.mark.parametrize("lie", LIES)
def test_a_record_that_cannot_be_right_is_refused(lie: str, saved: Path) -> None:
    change, pattern = LIES[lie]
    (path,) = saved.glob("everstep-*.json")
    path.write_bytes(record.pack(change(held(saved))))
    refused(lambda: load(saved), pattern)


def plain(folder: Path) -> torch_dcp.metadata.Metadata:
    save(folder, made(1), torch_dcp.FileSystemWriter(folder))
    return torch_dcp.FileSystemReader(folder).read_metadata()


def test_a_chunk_that_torch_lost_is_refused_instead_of_left_as_it_was(tmp_path: Path) -> None:
    said = plain(tmp_path / "a")
    large = said.state_dict_metadata["model.large"]
    half = large.size[0] // 2
    large.chunks[0].sizes = torch.Size([half])
    (tmp_path / "a" / names.METADATA).write_bytes(pickle.dumps(said))
    refused(lambda: load(tmp_path / "a"), "elements of 'model.large' are in no part")


def test_a_flip_in_what_torch_saved_is_found_by_its_own_crc(tmp_path: Path) -> None:
    said = plain(tmp_path / "a")
    (info,) = [info for index, info in said.storage_data.items() if index.fqn == "model.large"]
    flip(data(tmp_path / "a"), info.offset + info.length // 2)
    refused(lambda: load(tmp_path / "a"), r"'model\.large': .*fails its checksum")
