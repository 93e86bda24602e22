"""One target's world: every way to load, in turns, cold and warm, and whether they all bring the same bits."""

import random
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

import everstep
from bench.reshard import gauge
from bench.reshard.cases import Plan, Target
from bench.reshard.gauge import Taken
from bench.reshard.program import Program
from bench.reshard.saving import beside, settings
from bench.reshard.worlds import agreed, begun, first
from everstep.capture.context import Context
from everstep.capture.roster import call_the_roll
from everstep.company import company
from everstep.recover.cohort import stand
from everstep.recover.reshard import onto_shards
from everstep.recover.writers import Writers
from everstep.store.disk import existing

Cache = Literal["cold", "warm"]
BACKED = 3
"""So many times what is stored: the kernel's cache, a state, and what is taken back meanwhile."""
TRIES = 4
"""Of a cold load during which the hypervisor took memory back, whichever way it was: the fastest counts."""
RAW, RAW_MANY = "raw, a reader a rank", "raw, four readers in all"
"""Disks differ in which of them they give more to; a load is compared with that."""
BASE, LOG, DCP, DCP_ALL = "base", "log", "dcp", "dcp, all of it"


@dataclass(frozen=True, slots=True)
class Loaded:
    """What one rank saw: every turn of every way, the two whole resumes, and the bytes that it holds at the end."""

    turns: dict[tuple[str, Cache], list[list[Taken]]]
    """Each with its tries."""
    resumes: dict[str, Taken]
    wanted: int


def load(rank: int, plan: Plan, target: Target, home: Path) -> Loaded:
    program = Program(plan.shape, target.kind, seed=1)
    world = target.world
    _everstep(program, world, home / "run", 0)
    wanted, known = program.nbytes, program.digests()
    bases = [path for path in gauge.files(home / "run") if path.name.startswith("b000000000000")]
    stored = sum(path.stat().st_size for path in bases)
    first_byte, many = rank * stored // world, max(1, gauge.READERS // world)
    ways: dict[str, tuple[Path, Callable[[], object]]] = {
        RAW: (home / "run", lambda: gauge.read(bases, first_byte, wanted, 1)),
        RAW_MANY: (home / "run", lambda: gauge.read(bases, first_byte, wanted, many)),
        BASE: (home / "run", lambda: _everstep(program, world, home / "run", 0)),
        DCP: (home / "dcp", lambda: dcp.load(prepared, checkpoint_id=str(home / "dcp"))),
        DCP_ALL: (home / "dcp", lambda: _dcp(program, home / "dcp")),
        LOG: (home / "run", lambda: _everstep(program, world, home / "run", plan.steps)),
    }
    turns: dict[tuple[str, Cache], list[list[Taken]]] = {}
    caches: tuple[Cache, Cache] = ("cold", "warm")
    for turn in range(plan.turns):
        for name in _shuffled(list(ways), turn):
            files, work = ways[name]
            for cache in caches:  # the second time the same bytes are still in memory
                tries: list[Taken] = []
                disturbed = True
                while disturbed and len(tries) < TRIES:
                    if name not in (RAW, RAW_MANY):
                        program.forget()
                    prepared = _state(program) if name == DCP else {}
                    if name != DCP:
                        program.optimizer.state.clear()
                    if first() and cache == "cold":
                        gauge.evict(files)
                    begun()
                    if cache == "cold":
                        with gauge.backed(BACKED * stored // world):
                            begun()
                        begun()
                    before = gauge.taken_back()
                    tries.append(gauge.gauge(work))
                    begun()
                    disturbed = cache == "cold" and agreed(gauge.taken_back() != before)
                turns.setdefault((name, cache), []).append(tries)
                if turn == 0 and name in (BASE, DCP, DCP_ALL) and program.digests() != known:
                    raise SystemExit(f"{target.title}: {name} brought other bits than before")
    resumes = {name: _resume(program, home, step, BACKED * stored // world) for name, step in ((BASE, 0), (LOG, None))}
    return Loaded(turns, resumes, wanted)


def _shuffled(names: list[str], turn: int) -> list[str]:
    """Another order each turn, the same on all ranks: a way that always came after the same one would always find the
    memory that it left."""
    return random.Random(turn).sample(names, len(names))


def _everstep(program: Program, world: int, run: Path, step: int) -> None:
    """What `resume` does once it holds the run: look, plan, read, prove, place. It changes no file."""
    disk = existing(str(run))
    found = stand(disk, str(run), step)
    assert found is not None
    roster = call_the_roll(program.model, program.optimizer)
    writers = Writers(disk, str(run), found.epochs, found.step)
    onto_shards(writers, roster, Context(roster, {}), company(), alone=world == 1)
    disk.release()


def _state(program: Program) -> dict[str, object]:
    model, optimizer = get_state_dict(program.model, program.optimizer)
    return {"model": model, "optimizer": optimizer}


def _dcp(program: Program, place: Path) -> None:
    """As its documentation says: a state dict of the right shape, filled, and set."""
    state = _state(program)
    dcp.load(state, checkpoint_id=str(place))
    set_state_dict(
        program.model,
        program.optimizer,
        model_state_dict=state["model"],
        optim_state_dict=state["optimizer"],  # type: ignore[arg-type]
    )


def _resume(program: Program, home: Path, step: int | None, backed: int) -> Taken:
    """All that a user waits for: `open` and `resume`, of a run whose files are not in memory."""
    place = home / "resumed"
    if first():
        gauge.evict(beside(home / "run", place))
    program.forget()
    program.optimizer.state.clear()
    begun()
    with gauge.backed(backed):
        begun()
    begun()
    runs: list[everstep.Run] = []

    def work() -> None:
        runs.append(everstep.open(place, model=program.model, optimizer=program.optimizer, settings=settings()))
        runs[0].resume(step)

    taken = gauge.gauge(work)
    begun()
    runs[0].close()
    begun()
    if first():
        shutil.rmtree(place)
    if dist.is_initialized():
        dist.barrier()
    return taken
