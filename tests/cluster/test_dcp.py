"""torch.distributed.checkpoint over real processes, with our writer and reader: resharded, asynchronous, killed."""

import os
import signal
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as torch_dcp
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType

from everstep.cli.foreign import verify
from everstep.dcp import Reader, Writer, folder
from everstep.store.disk import LocalDisk
from tests import worlds
from tests.cluster.programs import Program, differences

pytestmark = pytest.mark.timeout(600)  # the first test starts six processes, on whatever machine this is

KINDS = ("fsdp", "hsdp", "2d", "ddp")
SAVED = (*KINDS, "overwritten", "thread", "process", "plans kept", "several files")


def state(program: Program) -> dict[str, Any]:
    model, optimizer = get_state_dict(program.model, program.optimizer)
    return {"model": model, "optimizer": optimizer, "schedule": program.schedule.state_dict()}


def save(path: Path, program: Program, **options: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch_dcp.save(state(program), storage_writer=Writer(path, threads=options.pop("threads", 1)), **options)


def loaded(path: Path, kind: str, reader: Any = None) -> dict[str, torch.Tensor]:
    """The whole state of a program of this kind that loaded the checkpoint."""
    program = Program(kind, seed=9)
    held = state(program)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch_dcp.load(held, storage_reader=reader or Reader(path))
        set_state_dict(
            program.model, program.optimizer, model_state_dict=held["model"], optim_state_dict=held["optimizer"]
        )
    return program.whole()


def trained(kind: str, steps: int) -> Program:
    program = Program(kind)
    for at in range(steps):
        program.step(at)
    return program


def met(rank: int, world: int, home: Path, name: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", store=dist.FileStore(str(home / name), world), rank=rank, world_size=world)


def ended(world: int, job: Callable[..., None], *args: object) -> list[int | None]:
    """How the processes of a world ended."""
    context = worlds.context
    processes = [context.Process(target=job, args=(rank, world, *args)) for rank in range(world)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(200)
        process.kill()
    return [process.exitcode for process in processes]


def four(rank: int, world: int, home: Path) -> None:
    """Everything that four ranks save."""
    met(rank, world, home, "four")
    wholes = {}
    for kind in KINDS:
        program = trained(kind, 3)
        save(home / kind, program)
        wholes[kind] = program.whole()
    program = trained("fsdp", 2)
    save(home / "overwritten", program)
    save(home / "several files", program, threads=3)
    for name, how in (("thread", AsyncCheckpointerType.THREAD), ("process", AsyncCheckpointerType.PROCESS)):
        torch_dcp.async_save(
            state(program), storage_writer=Writer(home / name), async_checkpointer_type=how
        ).result(timeout=120)  # fmt: skip
    for name in ("thread", "process", "several files"):
        wholes[name] = program.whole()
    for at in range(2, 4):
        program.step(at)
        save(home / "plans kept", program, planner=DefaultSavePlanner(enable_plan_caching=True))
        save(home / "overwritten", program)
    wholes["overwritten"] = wholes["plans kept"] = program.whole()
    if rank == 0:
        torch.save(wholes, home / "wholes.pt")
    dist.barrier()
    dist.destroy_process_group()


def two(rank: int, world: int, home: Path) -> None:
    """What two ranks load of it, and a load for which the ranks find different commits."""
    met(rank, world, home, "two")
    wholes, wrong = torch.load(home / "wholes.pt"), {}
    for name in SAVED:
        wrong[name] = differences(loaded(home / name, "fsdp"), wholes[name])
    reader = Reader(home / ("fsdp" if rank else "overwritten"))
    try:
        loaded(home, "fsdp", reader)
        wrong["a mixture"] = ["was loaded"]
    except torch_dcp.CheckpointException as refused:
        wrong["a mixture"] = [] if "was replaced while the ranks began" in str(refused) else [str(refused)]
    if rank == 0:
        torch.save(wrong, home / "wrong.pt")
    dist.barrier()
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("dcp")
    assert ended(4, four, found) == [0] * 4
    assert ended(2, two, found) == [0] * 2
    return found


@pytest.mark.parametrize("name", [*SAVED, "a mixture"])
def test_two_ranks_load_what_four_saved(name: str, home: Path) -> None:
    assert torch.load(home / "wrong.pt")[name] == []


@pytest.mark.parametrize("name", SAVED)
@pytest.mark.parametrize("reader", [Reader, torch_dcp.FileSystemReader])
def test_one_process_loads_what_four_saved_with_either_reader(name: str, reader: Any, home: Path) -> None:
    assert differences(loaded(home / name, "single", reader(home / name)), torch.load(home / "wholes.pt")[name]) == []


@pytest.mark.parametrize("name", SAVED)
def test_every_byte_of_it_is_proved(name: str, home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert verify(str(home / name), as_json=False), capsys.readouterr().out


def test_nothing_is_left_beside_what_was_saved(home: Path) -> None:
    assert {path.name for path in home.iterdir()} - {"four", "two", "wholes.pt", "wrong.pt"} == set(SAVED)
    assert sum(path.suffix == ".distcp" for path in (home / "overwritten").iterdir()) == 4


def killed(rank: int, world: int, home: Path, name: str, victim: int, moment: str) -> None:
    """A good save, then one in which a rank is killed: in the middle of writing, or just before the commit."""
    met(rank, world, home, "killed")
    program = trained("fsdp", 2)
    save(home / "good", program)
    whole = program.whole()
    if rank == 0:
        torch.save(whole, home / "whole.pt")
    program.step(2)
    dist.barrier()
    if rank == victim:
        if moment == "writing":
            LocalDisk.sync = lambda *_: os.kill(os.getpid(), signal.SIGKILL)  # type: ignore[method-assign, assignment]
        else:
            folder.commit = lambda *_: os.kill(os.getpid(), signal.SIGKILL)  # type: ignore[assignment]
    save(home / name, program)


@pytest.mark.parametrize("name", ["good", "next"])
@pytest.mark.parametrize(("victim", "moment"), [(1, "writing"), (0, "writing"), (0, "committing")])
def test_a_rank_killed_during_a_save_costs_that_save_only(victim: int, moment: str, name: str, tmp_path: Path) -> None:
    codes = ended(2, killed, tmp_path, name, victim, moment)
    assert codes[victim] == -signal.SIGKILL
    assert codes[1 - victim] != 0
    whole = torch.load(tmp_path / "whole.pt")
    assert differences(loaded(tmp_path / "good", "single"), whole) == []
    assert differences(loaded(tmp_path / "good", "single", torch_dcp.FileSystemReader(tmp_path / "good")), whole) == []
    if name == "next":
        with pytest.raises(torch_dcp.CheckpointException, match=r"not finished.*newest first: good"):
            loaded(tmp_path / "next", "single")
    save(tmp_path / name, trained("single", 3))
    parts = [path for path in tmp_path.rglob("*.distcp") if path.parent.name == name]
    assert len(parts) == 1
    assert not list(tmp_path.glob(".*"))
