"""A run that two ranks hold together, with bases at steps of their own."""

from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

import everstep
from tests.cluster.programs import Program

STEPS = 14


def opened(path: Path, program: Program, **more: Any) -> everstep.Run:
    return everstep.open(
        path, model=program.model, optimizer=program.seen, state={"schedule": program.schedule},
        settings=everstep.Settings(buffer_bytes_max=16 << 20, **more),
    )  # fmt: skip


def train(path: Path, program: Program, until: int, log_bytes: int) -> None:
    with opened(path, program, base_log_bytes_max=log_bytes, segment_bytes=4000) as run:
        for at in range(run.resume(), until):
            program.step(at)
            run.commit()
            run.wait(timeout=60)


def trained(rank: int, home: Path) -> None:
    """Two ranks that write bases at steps of their own."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", store=dist.FileStore(str(home / "two"), 2), rank=rank, world_size=2)
    train(home / "run", Program("fsdp"), STEPS, 16_000 if rank else 25_000)
    dist.destroy_process_group()
