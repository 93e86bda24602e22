"""A base alone, with the optimizer's state in it, onto other parallelisms: the same bits."""

import shutil
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from tests import worlds
from tests.cluster.programs import Program, differences
from tests.cluster.test_universal import opened

TARGETS = {2: ("fsdp", "tp"), 1: ("single",)}
EARLIER = 3


def saved(rank: int, home: Path) -> None:
    """Four shards of a program that was trained before the run began, so that its first base has moments."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", store=dist.FileStore(str(home / "four"), 4), rank=rank, world_size=4)
    program = Program("fsdp")
    for at in range(EARLIER):
        program.step(at)
    with opened(home / "run", program) as run:
        assert run.resume() == 0
        whole = program.whole()
        run.wait(timeout=60)
    if rank == 0:
        torch.save(whole, home / "whole.pt")
    dist.destroy_process_group()


def loaded(rank: int, world: int, home: Path, results: "mp.SimpleQueue[tuple[str, list[str]]]") -> None:
    torch.set_num_threads(1)
    if world > 1:
        dist.init_process_group("gloo", store=dist.FileStore(str(home / "n"), world), rank=rank, world_size=world)
    for kind in TARGETS[world]:
        path = home / kind
        if rank == 0:
            shutil.copytree(home / "run", path)
        if world > 1:
            dist.barrier()
        program = Program(kind, seed=9)
        for at in range(2):
            program.step(at)  # moments of its own, which must not stay
        with opened(path, program) as run:
            assert run.resume() == 0
            assert run.ledger is not None
            assert run.ledger.records == 0
            wrong = differences(program.whole(), torch.load(home / "whole.pt"))
        if rank == 0:
            results.put((kind, wrong))
    if world > 1:
        dist.destroy_process_group()


@pytest.fixture(scope="module")
def cells(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    home = tmp_path_factory.mktemp("bases")
    worlds.spawn(saved, (home,), 4)
    found: dict[str, list[str]] = {}
    for world in TARGETS:
        results: mp.SimpleQueue[tuple[str, list[str]]] = worlds.context.SimpleQueue()
        worlds.spawn(loaded, (world, home, results), world)
        while not results.empty():
            kind, wrong = results.get()
            found[kind] = wrong
    return found


@pytest.mark.parametrize("kind", [kind for kinds in TARGETS.values() for kind in kinds])
def test_a_base_becomes_every_parallelism(kind: str, cells: dict[str, list[str]]) -> None:
    assert cells[kind] == []
