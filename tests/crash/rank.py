"""One rank of a training of which layout, settings and end are drawn at random. Says what it does, a line at a time."""

import faulthandler
import hashlib
import logging
import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import torch
import torch.distributed as dist

import everstep
from everstep import api
from everstep.keeper import caller
from tests.cluster import pipeline, zero
from tests.cluster.programs import Program
from tests.crash.device import Device, RandomMover


@dataclass(frozen=True, slots=True)
class Life:
    """`hosts`: on which of them each rank is. `apart`: ranks have bases of their own steps; `edits`: weights are edited
    behind the optimizer's back. `back`: the step to return to. `early`: one rank is killed so long after the start;
    `late`, and the `keeper` of its host: after all have resumed, and then the keeper does nothing for the time it is
    `held`. Where it `lags`, it stands still from then until that long into the next life. The other ranks follow the
    first after `grace`. Whoever does not close ends by SIGKILL. `device`: what copies, if nothing is copied at once."""

    kind: str
    world: int
    hosts: tuple[int, ...]
    settings: everstep.Settings
    steps: int
    pause: float
    apart: bool
    edits: bool
    waits: bool
    closes: bool
    victim: int
    grace: float
    device: Device | None = None
    back: int | None = None
    early: float | None = None
    late: float | None = None
    keeper: float | None = None
    held: float | None = None
    lags: float | None = None


def train(rank: int, home: str, number: int, life: Life, report: Callable[[str], None]) -> None:
    torch.set_num_threads(1)
    stacks = stacks_of(Path(home), rank).open("w")
    faulthandler.register(signal.SIGUSR1, stacks)
    logging.getLogger("torch.distributed").setLevel(logging.CRITICAL)  # of peers that are gone
    api.CLOSE_SECONDS, caller.WAIT_SECONDS_MAX = 10.0, 20.0  # a disk that is full stays so
    if (device := life.device) is not None:
        api.mover = lambda _parameters: RandomMover(device)
    if life.world > 1:
        store = dist.FileStore(f"{home}/store-{number}", life.world)
        dist.init_process_group("gloo", store=store, rank=rank, world_size=life.world)
    program = pipeline.Pipeline(life.kind, 1) if life.kind in pipeline.KINDS else zero.made(life.kind, 1)
    settings = replace(life.settings, base_log_bytes_max=12_000 + 9_000 * rank) if life.apart else life.settings
    state = {"schedule": program.schedule}
    run = everstep.open(f"{home}/run", model=program.model, optimizer=program.seen, state=state, settings=settings)
    first = run.resume(life.back)
    origin = "memory" if any(item.origin.startswith("memory") for item in run.ledger or ()) else "disk"
    report(f"resumed {first} {whole(program)} {origin}")
    for at in range(first, first + life.steps):
        if life.edits and at % 4 == 1:
            edit(program)
        program.step(at)
        report(f"trained {at + 1} {whole(program)}")
        report(f"committed {run.commit()} {run.acknowledged('memory')} {run.acknowledged('disk')}")
        time.sleep(life.pause)
    if life.waits:
        try:
            report(f"waited {run.wait(timeout=10)}")
        except everstep.errors.NotAcknowledged:
            if not run.health.not_recorded:  # it is said of a step that was not
                raise
    if not life.closes:
        os.kill(os.getpid(), signal.SIGKILL)
    run.close()


@torch.no_grad()
def edit(program: Program) -> None:
    for group in program.optimizer.param_groups:
        for parameter in group["params"]:
            parameter.mul_(0.999)


def stacks_of(home: Path, rank: int) -> Path:
    """Where a rank that hangs says what its threads do."""
    return home / f"stacks-{rank}"


def whole(program: Program) -> str:
    """Everything that all ranks hold together, as a digest; every rank must call it."""
    if dist.is_initialized() and type(program) is Program:  # else they would wait for each other, or take other tensors
        told: list[object] = [None] * dist.get_world_size()
        named = program.model.named_parameters()
        dist.all_gather_object(told, [(name, list(program.optimizer.state.get(held, {}))) for name, held in named])
        assert all(one == told[0] for one in told), f"the ranks have different optimizer states: {told}"
    found = hashlib.blake2b(digest_size=8)
    for name, tensor in sorted(program.whole().items()):
        found.update(name.encode() + tensor.detach().contiguous().numpy().tobytes())
    return found.hexdigest()
