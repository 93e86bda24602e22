"""One rank of a training of which layout, settings and end are drawn at random. Says what it does, a line at a time."""

import hashlib
import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
import torch.distributed as dist

import everstep
from tests.cluster import pipeline, zero
from tests.cluster.programs import Program


@dataclass(frozen=True, slots=True)
class Life:
    """`back`: the step to return to. `early`: one rank is killed so long after the start; `late`, and the `keeper`:
    after all have resumed. The other ranks follow it after `grace`. Whoever does not close ends by SIGKILL."""

    kind: str
    world: int
    source: Literal["auto", "gradient", "state"]
    steps: int
    pause: float
    apart: bool
    waits: bool
    closes: bool
    victim: int
    grace: float
    back: int | None = None
    early: float | None = None
    late: float | None = None
    keeper: float | None = None


def train(rank: int, home: str, number: int, life: Life, report: Callable[[str], None]) -> None:
    torch.set_num_threads(1)
    if life.world > 1:
        store = dist.FileStore(f"{home}/store-{number}", life.world)
        dist.init_process_group("gloo", store=store, rank=rank, world_size=life.world)
    program = pipeline.Pipeline(life.kind, 1) if life.kind in pipeline.KINDS else zero.made(life.kind, 1)
    settings = everstep.Settings(
        source=life.source, buffer_bytes_max=16 << 20, segment_bytes=8000, digest_every=5,
        base_log_bytes_max=12_000 + 9_000 * rank if life.apart else None,
    )  # fmt: skip
    state = {"schedule": program.schedule}
    run = everstep.open(f"{home}/run", model=program.model, optimizer=program.seen, state=state, settings=settings)
    first = run.resume(life.back)
    origin = "memory" if any(item.origin.startswith("memory") for item in run.ledger or ()) else "disk"
    report(f"resumed {first} {whole(program)} {origin}")
    for at in range(first, first + life.steps):
        program.step(at)
        report(f"trained {at + 1} {whole(program)}")
        report(f"committed {run.commit()} {run.acknowledged('memory')} {run.acknowledged('disk')}")
        time.sleep(life.pause)
    if life.waits:
        report(f"waited {run.wait(timeout=60)}")
    if not life.closes:
        os.kill(os.getpid(), signal.SIGKILL)
    run.close()


def whole(program: Program) -> str:
    """Everything that all ranks hold together, as a digest; every rank must call it."""
    found = hashlib.blake2b(digest_size=8)
    for name, tensor in sorted(program.whole().items()):
        found.update(name.encode() + tensor.detach().contiguous().numpy().tobytes())
    return found.hexdigest()
