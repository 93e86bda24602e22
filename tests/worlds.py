"""Processes that train together, forked from one that has loaded torch and done nothing: a rank is there at once."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

context = mp.get_context("forkserver")
context.set_forkserver_preload(["everstep", "everstep.dcp", "tests.cluster.programs"])


def spawn(work: Callable[..., None], arguments: tuple[Any, ...], ranks: int) -> None:
    """`work(rank, *arguments)` on every rank; an error of one is raised here."""
    mp.start_processes(work, arguments, nprocs=ranks, start_method="forkserver")  # type: ignore[no-untyped-call]


def met(rank: int, world: int, home: Path, name: str) -> None:
    """One of so many ranks, each on one thread, that know each other by a file of this name."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", store=dist.FileStore(str(home / name), world), rank=rank, world_size=world)
