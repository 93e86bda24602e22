"""What several ranks hold alike is on disk once, and comes back whole: on as many ranks, on fewer, on one."""

import shutil
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

import everstep
from everstep.cli.main import main
from everstep.errors import Damaged
from everstep.layout import boxes
from everstep.recover.cohort import inventories, stand
from everstep.recover.replay import read
from everstep.store import base
from everstep.store.disk import existing
from tests import worlds
from tests.cluster.programs import Program, differences
from tests.cluster.test_universal import opened

STEPS, MORE = 9, 4
KINDS = ("ddp", "hsdp")


def begun(rank: int, world: int, home: Path, name: str) -> None:
    torch.set_num_threads(1)
    if world > 1:
        dist.init_process_group("gloo", store=dist.FileStore(str(home / name), world), rank=rank, world_size=world)


def ended(world: int) -> None:
    if world > 1:
        dist.barrier()
        dist.destroy_process_group()


def trained(rank: int, home: Path) -> None:
    begun(rank, 4, home, "four")
    for kind in KINDS:
        program = Program(kind)
        with opened(home / kind, program) as run:
            assert run.resume() == 0
            for at in range(STEPS):
                program.step(at)
                run.commit()
            run.wait(timeout=60)
        whole = program.whole()
        for at in range(STEPS, STEPS + MORE):
            program.step(at)
        later = program.whole()
        if rank == 0:
            torch.save((whole, later), home / f"{kind}.pt")
    apart(rank, home)
    ended(4)


def apart(rank: int, home: Path) -> None:
    """Ranks that say they are replicas, and are not."""
    program = Program("ddp")
    with opened(home / "apart", program) as run:
        run.resume()
        program.step(0)
        run.commit()
        with torch.no_grad():
            next(program.model.parameters()).add_(rank)
        program.step(1)
        run.commit()  # kept as a base: somebody changed the parameters
        run.wait(timeout=60)


def resumed(rank: int, world: int, home: Path, results: "mp.SimpleQueue[tuple[str, int, list[str]]]") -> None:
    begun(rank, world, home, f"of-{world}")
    for kind in KINDS:
        path, target = home / f"{kind}-{world}", {1: "single", 2: "fsdp", 4: kind}[world]
        if rank == 0:
            shutil.copytree(home / kind, path)
        if world > 1:
            dist.barrier()
        program = Program(target, seed=5)
        with opened(path, program) as run:
            step = run.resume()
            wrong = [] if step == STEPS else [f"step {step}"]
            whole, later = torch.load(home / f"{kind}.pt")
            wrong += differences(program.whole(), whole)
            for at in range(STEPS, STEPS + MORE):
                program.step(at)
                run.commit()
            run.wait(timeout=60)
            wrong += [f"later {name}" for name in differences(program.whole(), later)] if world == 4 else []
        if rank == 0:
            results.put((kind, world, wrong))
    ended(world)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("replicas")
    worlds.spawn(trained, (path,), 4)
    return path


@pytest.fixture(scope="module")
def cells(home: Path) -> dict[tuple[str, int], list[str]]:
    found: dict[tuple[str, int], list[str]] = {}
    for world in (4, 2, 1):
        results: mp.SimpleQueue[tuple[str, int, list[str]]] = worlds.context.SimpleQueue()
        worlds.spawn(resumed, (world, home, results), world)
        while not results.empty():
            kind, size, wrong = results.get()
            found[kind, size] = wrong
    return found


@pytest.mark.parametrize("world", [4, 2, 1])
@pytest.mark.parametrize("kind", KINDS)
def test_it_comes_back_and_goes_on(kind: str, world: int, cells: dict[tuple[str, int], list[str]]) -> None:
    assert cells[kind, world] == []


@pytest.mark.parametrize("kind", KINDS)
def test_every_tensor_and_every_gradient_is_on_disk_once(kind: str, home: Path) -> None:
    whole, _ = torch.load(home / f"{kind}.pt")
    cohort = stand(disk := existing(str(home / kind)), str(home / kind), None)
    assert cohort is not None
    held = inventories(disk, str(home / kind), cohort.epochs)
    assert held is not None
    assert len(held) == 4
    for at in {entry.step for own in held for entry in own.bases}:
        indexes = [base.load(disk, rank, e) for rank, own in enumerate(held) for e in own.bases if e.step == at]
        stored = [
            (s.tensor.name, s.tensor.box) for i in indexes for s in i.tensors if s.tensor.name.startswith("model/")
        ]
        assert len(stored) == len(set(stored)), "once"
        assert len(indexes) < 4 or sum(boxes.volume(box) for _, box in stored) == elements(whole), "and all of it"
    logged = [
        (step, blob.name, blob.box)
        for own in held for located, record in read(disk, own.records.values()) for step in [located.step]
        for blob in record.head.blobs if blob.name.startswith("gradient/")
    ]  # fmt: skip
    assert len(logged) == len(set(logged)), "once"
    trained = sum(tensor.numel() for name, tensor in whole.items() if name.startswith("exp_avg of"))
    assert sum(boxes.volume(box) for step, _, box in logged if step == STEPS) == trained
    disk.release()


def elements(whole: dict[str, torch.Tensor]) -> int:
    return sum(tensor.numel() for name, tensor in whole.items() if " of " not in name)


@pytest.mark.parametrize("kind", KINDS)
def test_it_is_restored_without_the_program(kind: str, home: Path) -> None:
    whole, _ = torch.load(home / f"{kind}.pt")
    found = everstep.restore(home / kind)
    assert found.step == STEPS
    for name, tensor in whole.items():
        if " of " not in name:
            assert torch.equal(found.tensors[f"model/{name}"], tensor), name


def test_ranks_that_were_no_replicas_are_refused(home: Path) -> None:
    with pytest.raises(Damaged, match="the ranks were no replicas of each other"):
        everstep.restore(home / "apart")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("command", [("verify", "--replay"), ("explain", "--onto", "single"), ("show",), ("log",)])
def test_the_commands_understand_shares(kind: str, command: tuple[str, ...], home: Path) -> None:
    with pytest.raises(SystemExit) as end:
        main([command[0], str(home / kind), *command[1:]])
    assert not end.value.code
