"""Loading runs nothing that a file names, unless torch or the program said that it may."""

import io
import os
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as torch_dcp
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner

from everstep.dcp import Writer, guard
from everstep.errors import Unsupported
from tests.unit.dcp.states import load, refused, save


class Trap:
    """Makes a folder when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.path),)


class Config:
    def __init__(self) -> None:
        self.width = 7


@pytest.mark.parametrize("writer", [Writer, torch_dcp.FileSystemWriter])
def test_a_value_that_would_call_something_is_refused_and_calls_nothing(writer: Any, tmp_path: Path) -> None:
    save(tmp_path / "a", {"w": torch.ones(2), "trap": Trap(tmp_path / "sprung")}, writer(tmp_path / "a"))
    found = refused(lambda: load(tmp_path / "a", state={"w": torch.zeros(2), "trap": None}), "would call")
    assert "'trap' names posix.mkdir" in found
    assert not (tmp_path / "sprung").exists()


def test_torchs_own_reader_springs_the_trap(tmp_path: Path) -> None:
    """The reason for the question; should this ever fail, torch asks it itself."""
    save(tmp_path / "a", {"trap": Trap(tmp_path / "sprung")})
    load(tmp_path / "a", torch_dcp.FileSystemReader(tmp_path / "a"), state={"trap": None})
    assert (tmp_path / "sprung").exists()


def test_what_the_program_allows_is_loaded(tmp_path: Path) -> None:
    save(tmp_path / "a", {"config": Config()})
    refused(lambda: load(tmp_path / "a", state={"config": None}), "Config.*add_safe_globals")
    with torch.serialization.safe_globals([Config]):
        assert load(tmp_path / "a", state={"config": None})["config"].width == 7


def test_a_planner_with_its_own_way_to_load_values_decides_for_itself(tmp_path: Path) -> None:
    class Reading(DefaultLoadPlanner):
        def load_bytes(self, read_item: Any, value: io.BytesIO) -> None:
            self.original_state_dict[read_item.dest_index.fqn] = len(value.getvalue())

    save(tmp_path / "a", {"config": Config()})
    assert load(tmp_path / "a", state={"config": 0}, planner=Reading())["config"] > 100


@pytest.mark.parametrize("content", [b"", b"\x80\x02cposix\nsystem\n.", b"PK\x03\x04" + b"\0" * 100])
def test_bytes_that_torch_did_not_save_are_refused(content: bytes) -> None:
    with pytest.raises(Unsupported, match=r"is not what torch\.save writes"):
        guard.refuse_code(io.BytesIO(content), "the value 'x'")
