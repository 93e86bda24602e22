"""What one parallelism saved, every other resumes: the same bits, from a base and from a base with records."""

import itertools
import shutil
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

import everstep
from tests.cluster.programs import Program, differences

WORLD = 4
KINDS = ("ddp", "fsdp", "hsdp", "2d")
STEPS = 5


def opened(path: Path, program: Program) -> everstep.Run:
    return everstep.open(
        path, model=program.model, optimizer=program.optimizer, state={"schedule": program.schedule},
        settings=everstep.Settings(buffer_bytes_max=16 << 20),
    )  # fmt: skip


def trained(path: Path, kind: str) -> None:
    """A run of some steps; what it ended with lies beside it."""
    program = Program(kind)
    with opened(path, program) as run:
        assert run.resume() == 0
        for at in range(STEPS):
            program.step(at)
            assert run.commit() == at + 1
        assert run.wait(timeout=60) == STEPS
        whole = program.whole()
    if not dist.is_initialized() or dist.get_rank() == 0:
        torch.save(whole, path.with_suffix(".pt"))


def resumed(path: Path, kind: str, reference: Path) -> list[str]:
    """What differs after the resume, and after two steps more and another resume."""
    program = Program(kind, seed=7)
    with opened(path, program) as run:
        assert run.resume() == STEPS
        assert program.schedule.last_epoch == STEPS
        found = differences(program.whole(), torch.load(reference))
        for at in range(STEPS, STEPS + 2):
            program.step(at)
            run.commit()
        assert run.wait(timeout=60) == STEPS + 2
        ended = program.whole()
    again = Program(kind, seed=8)
    with opened(path, again) as run:
        assert run.resume() == STEPS + 2
        return found + differences(again.whole(), ended)


def restored(path: Path, reference: Path) -> list[str]:
    """What differs where the state is put together without a program."""
    wanted = {name: value for name, value in torch.load(reference).items() if not name.startswith("hyper")}
    found = everstep.restore(path)
    names = {f"model/{name}": name for name in wanted if " of " not in name}
    names |= {
        f"optimizer/main/{name}/{key}": f"{key} of {name}"
        for key, _, name in (told.partition(" of ") for told in wanted if " of " in told)
    }
    plain = {names[name]: value for name, value in found.tensors.items() if name in names}
    groups = found.context["optimizers"]["main"]
    assert [group["weight_decay"] for group in groups] == [0.1, 0.0]
    assert sorted(name for group in groups for name in group["params"]) == sorted(
        name for name in wanted if f"exp_avg of {name}" in wanted
    )
    return differences(plain, wanted)


def ranks(rank: int, home: Path, results: "mp.SimpleQueue[tuple[str, list[str]]]") -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", store=dist.FileStore(str(home / "store"), WORLD), rank=rank, world_size=WORLD)
    for kind in KINDS:
        trained(home / kind, kind)
    for source, target in itertools.product(("single", *KINDS), KINDS):
        path = home / f"{source} to {target}"
        if rank == 0:
            shutil.copytree(home / source, path)
        dist.barrier()
        found = resumed(path, target, home / f"{source}.pt")
        if rank == 0:
            results.put((path.name, found))
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    """All cells that need four processes, in one world of them: starting it takes longer than most of the cells."""
    home = tmp_path_factory.mktemp("universal")
    trained(home / "single", "single")
    results: mp.SimpleQueue[tuple[str, list[str]]] = mp.get_context("spawn").SimpleQueue()
    mp.spawn(ranks, (home, results), nprocs=WORLD)  # type: ignore[no-untyped-call]
    found = {}
    while not results.empty():
        name, differing = results.get()
        found[name] = differing
    for kind in KINDS:
        found[f"{kind}, restored"] = restored(home / kind, home / f"{kind}.pt")
        path = home / f"{kind} to single"
        shutil.copytree(home / kind, path)
        found[path.name] = resumed(path, "single", home / f"{kind}.pt")
    return found


CELLS = [
    f"{a} to {b}" for a, b in itertools.product(("single", *KINDS), ("single", *KINDS)) if (a, b) != ("single",) * 2
]


CELLS += [f"{kind}, restored" for kind in KINDS]


@pytest.mark.parametrize("cell", CELLS)
def test_every_parallelism_becomes_every_other(cell: str, world: dict[str, list[str]]) -> None:
    assert world[cell] == []
