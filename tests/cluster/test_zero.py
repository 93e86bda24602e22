"""Flat buckets become whatever they are resumed on, and anything becomes flat buckets; base and log, bit for bit."""

import itertools
import shutil
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from tests import worlds
from tests.cluster.programs import differences
from tests.cluster.two import opened
from tests.cluster.zero import made

HERE = ("single", "zero1", "zero3")
"""In one process; those of `TWO` in two."""
TWO = ("zero1", "zero3", "redundant", "fsdp")
SOURCES = [f"{kind} x 1" for kind in HERE] + [f"{kind} x 2" for kind in TWO]
STEPS = 6
AGAIN = "zero1 x 2"
"""Of what goes on from these buckets it is seen that it can be resumed in turn."""


def trained(home: Path, kind: str, ranks: int) -> None:
    program, path = made(kind), home / f"{kind} x {ranks}"
    with opened(path, program) as run:
        assert run.resume() == 0
        for at in range(STEPS):
            program.step(at)
            run.commit()
        assert run.wait(timeout=60) == STEPS
        assert run.health.bases <= 1, "a step was kept as a base"
        whole = program.whole()
    if not dist.is_initialized() or dist.get_rank() == 0:
        torch.save(whole, path.with_suffix(".pt"))


def resumed(path: Path, kind: str, reference: Path) -> list[str]:
    """What differs after the resume; from one source also after a step more and another resume."""
    program = made(kind, seed=7)
    with opened(path, program) as run:
        assert run.resume() == STEPS
        found = differences(program.whole(), torch.load(reference))
        if reference.stem != AGAIN:
            return found
        program.step(STEPS)
        run.commit()
        assert run.wait(timeout=60) == STEPS + 1
        ended = program.whole()
    again = made(kind, seed=8)
    with opened(path, again) as run:
        assert run.resume() == STEPS + 1
        return found + differences(again.whole(), ended)


def ranks(rank: int, home: Path, results: "mp.SimpleQueue[tuple[str, list[str]]]") -> None:
    worlds.met(rank, 2, home, "two")
    for kind in TWO:
        trained(home, kind, 2)
    for source, kind in itertools.product(SOURCES, TWO):
        path = home / f"{source} to {kind} x 2"
        if rank == 0:
            shutil.copytree(home / source, path)
        dist.barrier()
        found = resumed(path, kind, home / f"{source}.pt")
        if rank == 0:
            results.put((path.name, found))
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def cells(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    home = tmp_path_factory.mktemp("zero")
    for kind in HERE:
        trained(home, kind, 1)
    results: mp.SimpleQueue[tuple[str, list[str]]] = worlds.context.SimpleQueue()
    worlds.spawn(ranks, (home, results), 2)
    found = {}
    while not results.empty():
        name, differing = results.get()
        found[name] = differing
    for source, kind in itertools.product(SOURCES, HERE):
        path = home / f"{source} to {kind} x 1"
        shutil.copytree(home / source, path)
        found[path.name] = resumed(path, kind, home / f"{source}.pt")
    return found


CELLS = [f"{source} to {target}" for source, target in itertools.product(SOURCES, SOURCES)]


@pytest.mark.parametrize("cell", CELLS)
def test_buckets_become_every_other_and_everything_becomes_buckets(cell: str, cells: dict[str, list[str]]) -> None:
    assert cells[cell] == []
