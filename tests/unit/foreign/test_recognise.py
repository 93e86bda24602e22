"""A path is enough; what is no checkpoint is told what was looked for."""

import os
import shutil
from pathlib import Path

import pytest
import torch

from everstep.errors import Damaged, EverstepError, NotARun, Unsupported
from everstep.foreign.recognise import read
from tests.unit.foreign import fixtures

FILES = {
    "plain/checkpoint.pt": "torch.save",
    "hf/model-00001-of-00002.safetensors": "safetensors",
    "hf.safetensors": "safetensors",
    "zero1/tag": "deepspeed zero-1",
    "zero3/tag": "deepspeed zero-3",
    "mcore/common.pt": "torch.save",
}


@pytest.mark.parametrize("name", FILES)
def test_a_file_or_folder_within_a_checkpoint_is_recognised(name: str) -> None:
    assert read(fixtures.path(name)).kind == FILES[name]


def test_megatron_s_newest_iteration_is_read(tmp_path: Path) -> None:
    shutil.copytree(fixtures.FOLDER / "mcore", tmp_path / "iter_0000007")
    (tmp_path / "latest_checkpointed_iteration.txt").write_text("7\n")
    assert read(str(tmp_path)).kind == "megatron torch_dist"


def test_a_safetensors_file_is_known_by_its_content(tmp_path: Path) -> None:
    shutil.copy(fixtures.FOLDER / "hf.safetensors", tmp_path / "weights")
    assert read(str(tmp_path / "weights")).kind == "safetensors"


def test_nothing_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(NotARun, match="no such file or folder"):
        read(str(tmp_path / "nothing"))


@pytest.mark.parametrize("content", [b"", b"\x00", b"hello", bytes(100)])
def test_a_file_that_is_no_checkpoint_is_told_what_was_looked_for(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(content)
    with pytest.raises(NotARun, match=r"Looked for .*torch\.distributed\.checkpoint.*DeepSpeed"):
        read(str(tmp_path / "f"))


def test_a_folder_that_is_no_checkpoint_is_told_what_was_looked_for(tmp_path: Path) -> None:
    (tmp_path / "readme").write_text("nothing")
    with pytest.raises(NotARun, match=r"Looked for .*it holds \['readme'\]"):
        read(str(tmp_path))


def test_a_pickle_by_itself_is_unsupported(tmp_path: Path) -> None:
    torch.save({}, tmp_path / "f.pt", _use_new_zipfile_serialization=False)
    with pytest.raises(Unsupported, match="bare pickle"):
        read(str(tmp_path / "f.pt"))


def test_a_metadata_file_per_rank_is_unsupported(tmp_path: Path) -> None:
    (tmp_path / "__0.metadata").write_bytes(b"")
    with pytest.raises(Unsupported, match="use_collectives"):
        read(str(tmp_path))


def test_data_without_metadata_is_an_unfinished_save(tmp_path: Path) -> None:
    (tmp_path / "__0_0.distcp").write_bytes(b"")
    with pytest.raises(Damaged, match="not finished"):
        read(str(tmp_path))


@pytest.mark.timeout(10)
def test_a_pipe_in_a_file_s_place_does_not_hang(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / ".metadata")
    with pytest.raises(EverstepError, match="regular file"):
        read(str(tmp_path))
