"""Folders that everstep.dcp.Writer saved once: every later version reads them, and writes the same record."""

import re
import shutil
import warnings
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
import torch.distributed.checkpoint as torch_dcp
import xxhash

from everstep.dcp import Reader, names, record, verify
from everstep.dcp.record import Record
from everstep.store.disk import LocalDisk
from tests.format import make_golden_dcp as golden
from tests.unit.dcp.states import differences, refused

FOLDERS = [golden.HERE / f"saved{world}" for world in golden.WORLDS]


def blank() -> dict[str, Any]:
    held = golden.state()
    held["model"] = {name: torch.full_like(tensor, -1.0) for name, tensor in held["model"].items()}
    return {**held, "step": torch.tensor(0.0), "epoch": 0, "schedule": {"name": "", "rates": []}}


def loaded(folder: Path) -> dict[str, Any]:
    held = blank()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch says that this is one process
        torch_dcp.load(held, storage_reader=Reader(folder))
    return held


def said(folder: Path) -> Record:
    disk = LocalDisk(str(folder))
    try:
        found = record.load(disk, str(folder))[1]
    finally:
        disk.release()
    assert found is not None
    return found


def without_places(held: Record) -> dict[str, Any]:
    """A record as JSON, without what differs from save to save and from one torch to the next."""
    plain = msgspec.json.decode(msgspec.json.encode(held))
    del plain["torch"]
    plain["files"] = [[re.sub("_[0-9a-f]{12}_", "_SAVE_", name), len(sums)] for name, _, sums in plain["files"]]
    plain["tensors"] = [[*rest, [[box, place[0]] for box, place in parts]] for *rest, parts in plain["tensors"]]
    plain["values"] = {name: place[0] for name, place in plain["values"].items()}
    return plain


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_a_golden_folder_is_proved_and_loads_what_it_held(folder: Path) -> None:
    found = verify.prove(str(folder))
    assert found.damages == []
    assert found.proved == found.nbytes > 0
    assert differences(loaded(folder), golden.state()) == []


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_checksums_and_names_are_made_as_the_page_says(folder: Path) -> None:
    metadata = (folder / ".metadata").read_bytes()
    assert (folder / f"everstep-{xxhash.xxh3_128_hexdigest(metadata)}.json").exists()
    held = said(folder)
    for sealed in held.files:
        content = (folder / sealed.name).read_bytes()
        blocks = [content[at : at + held.block_bytes] for at in range(0, len(content), held.block_bytes)]
        assert (sealed.nbytes, sealed.checksums) == (len(content), tuple(map(xxhash.xxh3_128_hexdigest, blocks)))


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_a_golden_folder_without_its_record_is_refused(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder, tmp_path / "copy")
    (path,) = (tmp_path / "copy").glob("everstep-*.json")
    path.unlink()
    refused(lambda: loaded(tmp_path / "copy"), "the record of this save")


def test_today_s_writer_writes_what_the_golden_writer_wrote(tmp_path: Path) -> None:
    golden.save(tmp_path / "saved", golden.state())
    assert without_places(said(tmp_path / "saved")) == without_places(said(FOLDERS[0]))
    kept = {".metadata": ".metadata", names.LEASE: names.LEASE}
    found = {kept.get(path.name, re.sub("[0-9a-f]{12,32}", "..", path.name)) for path in (tmp_path / "saved").iterdir()}
    assert found == {".metadata", names.LEASE, "__0_.._0.distcp", "everstep-...json"}


def test_two_ranks_wrote_boxes_of_one_tensor() -> None:
    held = said(FOLDERS[1])
    assert [len(entry.chunks) for entry in held.tensors if entry.name == "model.rows"] == [2]
    assert len(held.files) == 2
    assert sum(path.stat().st_size for path in golden.HERE.rglob("*")) < 60_000
