"""Several processes on this host that work together, as torchrun would start them, and what each of them answers."""

import os
import socket
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp


def world(size: int, work: Callable[..., Any], *given: Any) -> list[Any]:
    """What `work(rank, *given)` returns on each rank of a new world; one process needs no process group.

    They are new processes even where it is one: memory that an earlier load left behind would count as this one's.
    """
    answers = mp.get_context("spawn").SimpleQueue()
    with socket.socket() as taken:  # a file would count as written by those who meet there
        taken.bind(("127.0.0.1", 0))
        meeting = taken.getsockname()[1]
    mp.spawn(_rank, (size, meeting, answers, work, given), nprocs=size)  # type: ignore[no-untyped-call]
    found = dict(answers.get() for _ in range(size))
    return [found[rank] for rank in range(size)]


def begun() -> None:
    """All ranks are here."""
    if dist.is_initialized():
        dist.barrier()


def first() -> bool:
    return not dist.is_initialized() or dist.get_rank() == 0


def agreed(value: bool) -> bool:
    """What the first rank says."""
    told = [value]
    if dist.is_initialized():
        dist.broadcast_object_list(told)
    return told[0]


def _rank(rank: int, size: int, meeting: int, answers: Any, work: Callable[..., Any], given: tuple[Any, ...]) -> None:
    os.environ["LOCAL_WORLD_SIZE"] = str(size)
    torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // size))
    if size > 1:
        dist.init_process_group(
            "gloo", store=dist.TCPStore("127.0.0.1", meeting, size, rank == 0), rank=rank, world_size=size
        )
    answers.put((rank, work(rank, *given)))
    if size > 1:
        dist.barrier()
        dist.destroy_process_group()
