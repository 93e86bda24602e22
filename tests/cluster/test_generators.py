"""Random numbers go by the part of the data that a rank reads: who reads the same draws the same, in any layout."""

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from click.testing import CliRunner

import everstep
from everstep.cli.main import cli
from everstep.types import DataPlace
from tests import worlds
from tests.cluster.programs import Program

STEPS = 4


def place(rank: int, world: int, alike: int, *, turns: bool = False) -> everstep.Place:
    parts = world // alike
    return everstep.Place(rank % parts if turns else rank // alike, parts)


def opened(path: Path, program: Program, said: everstep.Place | None) -> everstep.Run:
    state: dict[str, Any] = {"schedule": program.schedule} | ({} if said is None else {"place": said})
    return everstep.open(
        path, model=program.model, optimizer=program.optimizer, state=state,
        settings=everstep.Settings(buffer_bytes_max=16 << 20),
    )  # fmt: skip


def train(path: Path, said: everstep.Place | None, rank: int, kind: str) -> None:
    program = Program(kind)
    torch.manual_seed(100 + (rank if said is None else said.place.rank))
    with opened(path, program, said) as run:
        run.resume()
        for at in range(STEPS):
            torch.rand(1 + at)
            program.step(at)
            run.commit()
        run.wait(timeout=60)


def drawn(path: Path, said: everstep.Place | None, kind: str) -> tuple[float, str]:
    """What a rank draws first after a resume, and what the ledger says of that."""
    copy = path.with_name(f"{path.name}.{kind}.{dist.get_world_size() if dist.is_initialized() else 1}")
    if not dist.is_initialized() or dist.get_rank() == 0:
        shutil.copytree(path, copy)
    if dist.is_initialized():
        dist.barrier()
    program = Program(kind, seed=9)
    with opened(copy, program, said) as run:
        assert run.resume() == STEPS
        found = float(torch.rand(()))
        assert run.ledger is not None
        status = next(item.status for item in run.ledger if item.kind == "generator" and item.name == "torch")
    return found, status


def expected(part: int) -> float:
    """The next number of whoever read this part."""
    torch.manual_seed(100 + part)
    for at in range(STEPS):
        torch.rand(1 + at)
    return float(torch.rand(()))


def four(rank: int, home: Path) -> None:
    """Two parts of the data, each read by two tensor-parallel ranks; then four parts; then two again, in turns."""
    worlds.met(rank, 4, home, "four")
    train(home / "run", place(rank, 4, 2), rank, "2d")
    train(home / "unsaid", None, rank, "2d")
    dist.barrier()
    assert drawn(home / "run", place(rank, 4, 2), "2d") == (expected(rank // 2), "restored")
    found, status = drawn(home / "run", place(rank, 4, 1), "fsdp")
    if rank < 2:
        assert (found, status) == (expected(rank), "restored")
    else:
        assert status == "derived"
        assert found not in [expected(part) for part in range(4)]
    assert drawn(home / "run", place(rank, 4, 2, turns=True), "hsdp") == (expected(rank % 2), "restored")
    assert drawn(home / "unsaid", None, "fsdp") == (expected(rank), "restored")
    said: list[Any] = [None] * 4
    dist.all_gather_object(said, found)
    assert len(set(said)) == 4
    dist.destroy_process_group()


def two(rank: int, home: Path) -> None:
    """All read the same."""
    worlds.met(rank, 2, home, "two")
    assert drawn(home / "run", place(rank, 2, 2), "tp") == (expected(0), "restored")
    dist.destroy_process_group()


def test_who_reads_the_same_draws_the_same(tmp_path: Path) -> None:
    worlds.spawn(four, (tmp_path,), 4)
    worlds.spawn(two, (tmp_path,), 2)
    assert drawn(tmp_path / "run", everstep.Place(0, 1), "single") == (expected(0), "restored")
    done = CliRunner().invoke(cli, ["explain", str(tmp_path / "run"), "--onto", "fsdp:8"], obj={})
    assert "one of 0 to 1 goes on with those of that part" in done.output


def test_a_loader_says_it_as_well() -> None:
    assert everstep.Loader(range(8), rank=1, world=2).place == DataPlace(1, 2)
    with pytest.raises(everstep.errors.Misuse, match="rank 2 of 2 that read different data cannot be"):
        everstep.Place(2, 2)
