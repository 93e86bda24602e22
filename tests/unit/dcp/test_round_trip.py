"""What was saved comes back, whoever reads it; and what torch saved is read too, with a word on what is not proved."""

import json
from pathlib import Path

import pytest
import torch
import torch.distributed.checkpoint as torch_dcp
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

from everstep.dcp import Reader, Writer
from everstep.errors import Misuse
from everstep.foreign import dcp as foreign
from tests.unit.dcp.states import differences, load, made, refused, save


@pytest.mark.parametrize("threads", [1, 3])
def test_what_was_saved_comes_back(threads: int, tmp_path: Path) -> None:
    save(tmp_path / "a", made(1), Writer(tmp_path / "a", threads=threads))
    reader = Reader(tmp_path / "a")
    assert differences(load(tmp_path / "a", reader), made(1)) == []
    assert reader.notes == []


def test_torchs_own_reader_reads_it(tmp_path: Path) -> None:
    save(tmp_path / "a", made(1))
    assert differences(load(tmp_path / "a", torch_dcp.FileSystemReader(tmp_path / "a")), made(1)) == []


def test_torchs_own_converter_reads_it(tmp_path: Path) -> None:
    save(tmp_path / "a", made(1))
    dcp_to_torch_save(tmp_path / "a", tmp_path / "one.pt")
    assert differences(torch.load(tmp_path / "one.pt"), made(1)) == []


def test_the_importer_of_other_formats_reads_it(tmp_path: Path) -> None:
    save(tmp_path / "a", made(1))
    found = foreign.read(str(tmp_path / "a"))
    assert {part.tensor.name for part in found.tensors} >= {"model/large", "model/matrix", "model/empty", "model/mask"}


def test_what_torch_saved_is_read_and_what_is_not_proved_is_said(tmp_path: Path) -> None:
    save(tmp_path / "a", made(1), torch_dcp.FileSystemWriter(tmp_path / "a"))
    reader = Reader(tmp_path / "a")
    assert differences(load(tmp_path / "a", reader), made(1)) == []
    assert ".metadata has no checksum" in reader.notes[0]
    assert "0 bytes have no checksum" in reader.notes[1]


def test_bytes_without_a_checksum_are_counted(tmp_path: Path) -> None:
    torch.serialization.set_crc32_options(False)
    try:
        save(tmp_path / "a", made(1), torch_dcp.FileSystemWriter(tmp_path / "a"))
    finally:
        torch.serialization.set_crc32_options(True)
    reader = Reader(tmp_path / "a")
    assert differences(load(tmp_path / "a", reader), made(1)) == []
    assert "0 bytes agree with their CRC-32; " in reader.notes[1]
    assert "; 0 bytes have no checksum" not in reader.notes[1]


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_loading_what_torch_saved_warns(tmp_path: Path) -> None:
    save(tmp_path / "a", made(1), torch_dcp.FileSystemWriter(tmp_path / "a"))
    with pytest.warns(UserWarning, match="metadata has no checksum"):
        torch_dcp.load(made(), storage_reader=Reader(tmp_path / "a"))


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_the_path_may_come_with_each_call(tmp_path: Path) -> None:
    writer, reader = Writer(), Reader()
    for seed in (1, 2):
        torch_dcp.save(made(seed), storage_writer=writer, checkpoint_id=tmp_path / str(seed))
    for seed in (2, 1):
        state = made()
        torch_dcp.load(state, storage_reader=reader, checkpoint_id=str(tmp_path / str(seed)))
        assert differences(state, made(seed)) == []


def test_without_a_path_the_message_says_where_to_give_one(tmp_path: Path) -> None:
    refused(lambda: save(tmp_path, made(), Writer()), "checkpoint_id")
    with pytest.raises(Misuse, match="checkpoint_id"):
        _ = Reader().path


@pytest.mark.parametrize(("target", "fits"), [("/tmp/x", True), ("s3://bucket/x", False)])
def test_only_local_folders_are_taken(target: str, fits: bool) -> None:
    assert Writer.validate_checkpoint_id(target) is fits
    assert Reader.validate_checkpoint_id(target) is fits


def test_a_part_of_the_state_may_be_loaded(tmp_path: Path) -> None:
    save(tmp_path / "a", made(1))
    state = {"model": {"matrix": torch.zeros(37, 41, dtype=torch.bfloat16)}}
    assert differences(load(tmp_path / "a", state=state), {"model": {"matrix": made(1)["model"]["matrix"]}}) == []


def test_a_planner_that_keeps_its_plans_saves_each_time_anew(tmp_path: Path) -> None:
    for seed in (1, 2, 3):
        planner = DefaultSavePlanner(enable_plan_caching=True)
        with pytest.warns(UserWarning, match="torch.distributed is disabled"):
            torch_dcp.save(made(seed), storage_writer=Writer(tmp_path / f"{seed % 2}"), planner=planner)
        assert differences(load(tmp_path / f"{seed % 2}"), made(seed)) == []


def test_torchs_own_writer_may_take_the_folder_over_and_we_may_take_it_back(tmp_path: Path) -> None:
    save(tmp_path / "a", made(1))
    save(tmp_path / "a", made(2), torch_dcp.FileSystemWriter(tmp_path / "a"))
    reader = Reader(tmp_path / "a")
    assert differences(load(tmp_path / "a", reader), made(2)) == []
    assert reader.notes
    save(tmp_path / "a", made(3))
    assert differences(load(tmp_path / "a"), made(3)) == []
    assert len(list((tmp_path / "a").iterdir())) == 4


def test_the_record_is_plain_json_and_names_every_entry(tmp_path: Path) -> None:
    save(tmp_path / "a", made(1))
    (path,) = (tmp_path / "a").glob("everstep-*.json")
    said = json.loads(path.read_text())
    assert (said["everstep"], said["format"]) == ("dcp", 1)
    assert {name for name, *_ in said["document"]["tensors"]} == {
        "model.large", "model.matrix", "model.empty", "model.mask", "step"
    }  # fmt: skip
    assert {"epoch", "schedule.name", "schedule.rates"} <= said["document"]["values"].keys()


def test_a_save_without_collectives_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Exception, match="no moment at which"), pytest.warns(UserWarning, match="disabled"):
        torch_dcp.save(made(), storage_writer=Writer(tmp_path / "a"), use_collectives=False)
    assert not (tmp_path / "a").exists()
