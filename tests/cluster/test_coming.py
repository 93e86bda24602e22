"""Bases of several writers are read ahead of each other; one that is damaged costs nothing but time."""

import shutil
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from everstep.log.inventory import survey
from everstep.recover import choose
from everstep.store import names
from everstep.store.disk import existing
from tests import worlds
from tests.cluster.programs import Program, differences
from tests.cluster.two import opened

WORLD, STEPS = 4, 3


def saved(rank: int, home: Path) -> None:
    """Four shards, with a base after each step."""
    worlds.met(rank, WORLD, home, "saved")
    program = Program("fsdp")
    with opened(home / "run", program, base_log_bytes_max=1) as run:
        for at in range(run.resume(), STEPS):
            program.step(at)
            run.commit()
            run.wait(timeout=60)
        whole = program.whole()
    if rank == 0:
        torch.save(whole, home / "whole.pt")
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("coming")
    worlds.spawn(saved, (home,), WORLD)
    return home


def routes(run: Path, at: int) -> list[choose.Route]:
    disk = existing(str(run))
    try:
        return choose.routes(survey(disk, str(run), rank=at), STEPS)
    finally:
        disk.release()


@pytest.mark.parametrize("at", range(WORLD))
def test_a_damaged_base_is_replaced_by_an_older_one(at: int, home: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(home / "run", run)
    newest, older = routes(run, at)[:2]
    assert [bool(way.records) for way in (newest, older)] == [False, True]
    path = run / names.tensors(at, newest.base.step, newest.base.epoch)
    data = bytearray(path.read_bytes())
    data[-5] ^= 1
    path.write_bytes(data)
    program = Program("single", seed=9)
    with opened(run, program) as opening:
        assert opening.resume() == STEPS
        assert opening.ledger is not None
        origins = {item.origin for item in opening.ledger}
    assert differences(program.whole(), torch.load(home / "whole.pt")) == []
    told = {other: f"writer {other}, base {STEPS}" for other in range(WORLD)}
    told[at] = f"writer {at}, base {older.base.step} and {len(older.records)} records"
    assert "; ".join(told.values()) in origins
