"""`async_save` in a thread; in a process it needs a process group and is among the cluster's tests."""

from pathlib import Path

import pytest
import torch
import torch.distributed.checkpoint as torch_dcp

from everstep.dcp import Writer
from tests.unit.dcp.states import differences, load, made

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")


def test_a_save_in_a_thread_holds_the_state_of_the_call(tmp_path: Path) -> None:
    state = made(1)
    saving = torch_dcp.async_save(state, storage_writer=Writer(tmp_path / "a"))
    state["model"]["large"].zero_()  # training goes on
    saving.result(timeout=60)
    assert differences(load(tmp_path / "a"), made(1)) == []


def test_one_writer_serves_one_save_after_another(tmp_path: Path) -> None:
    writer = Writer()
    for seed in (1, 2, 3):
        torch_dcp.async_save(made(seed), storage_writer=writer, checkpoint_id=tmp_path / str(seed)).result(timeout=60)
    for seed in (1, 2, 3):
        assert differences(load(tmp_path / str(seed)), made(seed)) == []


def test_a_failed_save_in_a_thread_is_reported_and_leaves_the_one_before(tmp_path: Path) -> None:
    torch_dcp.save(made(1), storage_writer=Writer(tmp_path / "a"))
    bad = {**made(2), "w": torch.ones(2).to_sparse()}
    with pytest.raises(BaseException, match=r"[Ss]parse|storage"):
        torch_dcp.async_save(bad, storage_writer=Writer(tmp_path / "a")).result(timeout=60)
    assert differences(load(tmp_path / "a"), made(1)) == []
