"""Processes that train together, forked from one that has loaded torch and done nothing: a rank is there at once."""

from collections.abc import Callable
from typing import Any

import torch.multiprocessing as mp

context = mp.get_context("forkserver")
context.set_forkserver_preload(["everstep", "everstep.dcp", "tests.cluster.programs"])


def spawn(work: Callable[..., None], arguments: tuple[Any, ...], ranks: int) -> None:
    """`work(rank, *arguments)` on every rank; an error of one is raised here."""
    mp.start_processes(work, arguments, nprocs=ranks, start_method="forkserver")  # type: ignore[no-untyped-call]
