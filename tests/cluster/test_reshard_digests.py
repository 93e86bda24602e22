"""What is cut anew is proved: every tensor has the digest that its writer had, or all ranks refuse it."""

import shutil
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

import everstep
from everstep.errors import Damaged
from everstep.recover.parts import Move
from everstep.recover.wanted import Wanted
from everstep.types import Box, Local, Piece
from tests import worlds
from tests.cluster.programs import Program, differences

STEPS = 3
TENSOR, ROWS = "layers.1.down.weight", 3
"""Twelve rows, of which each of four writers has three."""

Answers = "mp.SimpleQueue[tuple[str, str]]"


def opened(path: Path, program: Program) -> everstep.Run:
    return everstep.open(
        path, model=program.model, optimizer=program.optimizer, state={"schedule": program.schedule},
        settings=everstep.Settings(buffer_bytes_max=16 << 20),
    )  # fmt: skip


def saved(rank: int, home: Path) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", store=dist.FileStore(str(home / "four"), 4), rank=rank, world_size=4)
    program = Program("fsdp")
    with opened(home / "run", program) as run:
        run.resume()
        for at in range(STEPS):
            program.step(at)
            run.commit()
        run.wait(timeout=60)
        whole = program.whole()
    if rank == 0:
        torch.save(whole, home / "whole.pt")
    dist.destroy_process_group()


def swap(patched: pytest.MonkeyPatch) -> None:
    """A planning error: the first writer's rows go where the second's belong, and the other way round."""
    right = Wanted._moves

    def wrong(want: Wanted, theirs: Local) -> tuple[list[Move], list[Box]]:
        found, left = right(want, theirs)
        return [Move(m.source, _shifted(m), m.box) if theirs.logical == TENSOR else m for m in found], left

    patched.setattr(Wanted, "_moves", wrong)


def _shifted(move: Move) -> Piece:
    if move.box.low[0] >= 2 * ROWS:
        return move.target
    by, box = (-ROWS, ROWS)[move.box.low[0] // ROWS], move.target.box
    moved = Box((box.low[0] + by, *box.low[1:]), (box.high[0] + by, *box.high[1:]))
    return Piece(moved, move.target.base, move.target.strides)


def told(path: Path, kind: str, step: int, wanted: dict[str, torch.Tensor] | None) -> str:
    """What the ledger says, or the error that came instead of it."""
    program = Program(kind, seed=7)
    with opened(path, program) as run:
        try:
            run.resume(step)
        except Damaged as refused:
            return f"refused: {refused}"
        if wanted is not None and (other := differences(program.whole(), wanted)):
            return f"other bits: {other}"
        assert run.ledger is not None
        return run.ledger.digests


def resumed(rank: int, home: Path, answers: Answers) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", store=dist.FileStore(str(home / "two"), 2), rank=rank, world_size=2)
    for kind in ("fsdp", "tp"):
        for step in (0, STEPS):
            for planted in (False, True):
                path = home / f"{kind} {step} {planted}"
                if rank == 0:
                    shutil.copytree(home / "run", path)
                dist.barrier()
                with pytest.MonkeyPatch.context() as patched:
                    if planted:
                        swap(patched)
                    whole = torch.load(home / "whole.pt") if step and not planted else None
                    answers.put((f"{kind} {step} {planted}", told(path, kind, step, whole)))
                dist.barrier()
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("digests")
    worlds.spawn(saved, (place,), 4)
    return place


@pytest.fixture(scope="module")
def said(home: Path) -> dict[str, list[str]]:
    """What the two ranks say of each case."""
    answers = worlds.context.SimpleQueue()
    worlds.spawn(resumed, (home, answers), 2)
    found: dict[str, list[str]] = {}
    while not answers.empty():
        case, text = answers.get()
        found.setdefault(case, []).append(text)
    return found


CASES = [(kind, step) for kind in ("fsdp", "tp") for step in (0, STEPS)]


@pytest.mark.parametrize(("kind", "step"), CASES)
def test_four_shards_become_two_parts_with_the_digests_of_all(kind: str, step: int, said: dict[str, list[str]]) -> None:
    one, two = said[f"{kind} {step} False"]
    assert one == two
    assert one.endswith("tensors have the digests that their writers had")
    assert int(one.split()[0]) >= 4 * (14 if step == 0 else 14 + 2 * 13)  # of four writers; one parameter is frozen


@pytest.mark.parametrize(("kind", "step"), CASES)
def test_rows_in_each_others_place_are_refused_by_every_rank(kind: str, step: int, said: dict[str, list[str]]) -> None:
    one, two = said[f"{kind} {step} True"]
    assert one == two
    assert one.startswith(f"refused: step {step}: model/{TENSOR} of writer")
    assert "Resume with the layout that wrote it" in one


@pytest.mark.parametrize("step", [0, STEPS])
def test_one_process_proves_and_refuses_alike(
    step: int, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(home / "run", tmp_path / "clean")
    shutil.copytree(home / "run", tmp_path / "planted")
    whole = torch.load(home / "whole.pt") if step else None
    assert told(tmp_path / "clean", "single", step, whole).endswith("have the digests that their writers had")
    swap(monkeypatch)
    assert told(tmp_path / "planted", "single", step, None).startswith(
        f"refused: step {step}: model/{TENSOR} of writer"
    )
