"""A rank of another layout replays only the boxes that it wants; together these prove to be what was trained."""

import shutil
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

import everstep
from everstep.recover import cuts, seats
from everstep.recover.cuts import Claim, Said
from everstep.recover.reshard import NOT_BY_PARTS
from everstep.store.base import parameters_digest, state_digest
from everstep.types import Box, Pair
from tests import worlds
from tests.cluster import programs
from tests.cluster.programs import Program, differences

STEPS = 5
SAVED = {
    "single": {}, "foreach": {"foreach": True}, "fused": {"fused": True}, "amsgrad": {"amsgrad": True}, "few words": {},
}  # fmt: skip
Answers = "mp.SimpleQueue[tuple[str, int, str, tuple[str, ...], list[str]]]"
Told = dict[str, list[tuple[str, tuple[str, ...], list[str]]]]


def made(kind: str, how: str, seed: int = 0) -> Program:
    programs.WORDS = 2 if how == "few words" else 13  # of two rows, two of four ranks have none
    program = Program(kind, seed)
    groups = [{**group, **SAVED[how]} for group in program.optimizer.param_groups]
    program.optimizer = torch.optim.AdamW(groups, lr=1e-2, **SAVED[how])  # type: ignore[arg-type]
    program.schedule = torch.optim.lr_scheduler.ExponentialLR(program.optimizer, 0.97)
    return program


def opened(path: Path, program: Program, every: int = 1000) -> everstep.Run:
    return everstep.open(
        path, model=program.model, optimizer=program.optimizer, state={"schedule": program.schedule},
        settings=everstep.Settings(buffer_bytes_max=16 << 20, digest_every=every),
    )  # fmt: skip


def saved(rank: int, home: Path) -> None:
    worlds.met(rank, 4, home, "saved")
    for how in SAVED:
        program = made("fsdp", how)
        with opened(home / how, program, every=STEPS if how in ("amsgrad", "few words") else 1000) as run:
            run.resume()
            for at in range(STEPS):
                program.step(at)
                run.commit()
            run.wait(timeout=60)
            whole = program.whole()
        if rank == 0:
            torch.save(whole, home / f"{how}.pt")
    dist.destroy_process_group()


def astray(patched: pytest.MonkeyPatch) -> None:
    """A rank replays something else than was trained."""
    right = cuts.claim

    def wrong(*given: object) -> Claim:
        found = right(*given)  # type: ignore[arg-type]
        (name, box, (low, high)), *rest = found.parts
        return Claim(found.writer, found.said, [(name, box, (low ^ 1, high)), *rest])

    patched.setattr(seats.cuts, "claim", wrong)


def resumed(rank: int, home: Path, answers: Answers) -> None:
    worlds.met(rank, 4, home, "resumed")
    for how in SAVED:
        for kind in ("tp", "2d"):
            for planted in (False, True):
                case = f"{how} to {kind}{' astray' if planted else ''}"
                if rank == 0:
                    shutil.copytree(home / how, home / case)
                dist.barrier()
                program = made(kind, how, seed=7)
                with pytest.MonkeyPatch.context() as patched, opened(home / case, program) as run:
                    patched.setattr(cuts, "LARGEST", 0.99)  # so small a model: of some writers nearly all is wanted
                    if planted and rank == 2:
                        astray(patched)
                    assert run.resume() == STEPS
                    other = differences(program.whole(), torch.load(home / f"{how}.pt"))
                    assert run.ledger is not None
                    answers.put((case, rank, run.ledger.replay, run.ledger.notes, other))
                dist.barrier()
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Told:
    home = tmp_path_factory.mktemp("cuts")
    worlds.spawn(saved, (home,), 4)
    answers = worlds.context.SimpleQueue()
    worlds.spawn(resumed, (home, answers), 4)
    found: Told = {}
    while not answers.empty():
        case, _, replayed, notes, other = answers.get()
        found.setdefault(case, []).append((replayed, notes, other))
    return found


@pytest.mark.parametrize("how", SAVED)
@pytest.mark.parametrize("kind", ["tp", "2d"])
def test_each_rank_replays_its_own_boxes_and_all_of_them_prove_it(how: str, kind: str, told: Told) -> None:
    """Where an optimizer rounds the end of a tensor differently, every writer's part is replayed as it was cut."""
    whole = how == "fused"
    assert told[f"{how} to {kind}"] == [("native rules" + ("" if whole else cuts.OF_PARTS), (), [])] * 4


@pytest.mark.parametrize("how", [how for how in SAVED if how != "fused"])
@pytest.mark.parametrize("kind", ["tp", "2d"])
def test_parts_that_do_not_add_up_are_replayed_whole_by_every_rank(how: str, kind: str, told: Told) -> None:
    assert told[f"{how} to {kind} astray"] == [("native rules", (NOT_BY_PARTS,), [])] * 4


WHOLE = {"model/a": (7, 8), "model/b": (30, 40), "optimizer/main/b/step": (5, 5)}
TOP, BOTTOM = Box((0, 0), (2, 4)), Box((2, 0), (4, 4))
PARTS: list[tuple[str, Box | None, Pair]] = [
    ("model/a", None, (7, 8)), ("model/b", TOP, (10, 15)), ("model/b", BOTTOM, (20, 25)),
    ("optimizer/main/b/step", None, (5, 5)),
]  # fmt: skip
SAID = Said(3, parameters_digest(WHOLE), state_digest(WHOLE))


@pytest.mark.parametrize(
    ("ranks", "right"),
    {
        "all of it by one": ([PARTS], True),
        "rows apart": ([[PARTS[0], PARTS[1], PARTS[3]], [PARTS[0], PARTS[2], PARTS[3]]], True),
        "a box that nobody has": ([PARTS[:2] + PARTS[3:]], False),
        "a box twice, the same": ([PARTS, PARTS[1:]], True),
        "a box twice, not the same": ([PARTS, [("model/b", TOP, (10, 16))]], False),
        "boxes that overlap": ([PARTS, [("model/b", Box((0, 0), (3, 4)), (10, 15))]], False),
        "other state": ([[*PARTS[:3], ("optimizer/main/b/step", None, (5, 6))]], False),
        "another's parameters": ([[("model/a", None, (7, 9)), *PARTS[1:]]], False),
    }.values(),
)
def test_parts_add_up_or_they_do_not(ranks: list[list[tuple[str, Box | None, Pair]]], right: bool) -> None:
    assert cuts._right([Claim(0, SAID, parts) for parts in ranks]) is right


def test_ranks_that_read_other_records_prove_nothing() -> None:
    assert not cuts._right([Claim(0, SAID, PARTS), Claim(0, Said(2, SAID.parameters, SAID.state), PARTS)])
    assert not cuts._right([Claim(0, Said(3, "", None), PARTS)])


@pytest.mark.parametrize(
    ("said", "cut"),
    {
        "half each": (['{"0":0.5,"1":0.5}', '{"0":0.5}'], "[0,1]"),
        "one wants nearly all": (['{"0":0.5,"1":0.5}', '{"0":0.9}'], "[1]"),
        "one cannot": (['{"0":0.5,"1":0.5}', "null"], "[]"),
        "nothing is wanted": (["{}", "{}"], "[]"),
    }.values(),
)
def test_all_ranks_cut_a_writer_or_none_does(said: list[str], cut: str) -> None:
    assert cuts._decided(said) == cut
