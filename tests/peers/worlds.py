"""Worlds of two processes on CPUs in which other systems train, save and load; what they hold lies in a file beside."""

import importlib.util
import multiprocessing
import os
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn

RANKS = 2
STEPS = 3
REQUIRED = "EVERSTEP_PEERS"
Tensors = dict[str, torch.Tensor]


def needs(package: str) -> list[pytest.MarkDecorator]:
    """Marks of a module that cannot do without a peer; its own warnings are its own.

    Under `make peers` one that is missing is an error and no reason to skip: a hole must not look like a pass.
    """
    try:
        there = importlib.util.find_spec(package) is not None
    except ModuleNotFoundError:  # not even what it is a part of
        there = False
    if not there and os.environ.get(REQUIRED) == "required":
        raise ModuleNotFoundError(f"{package} is not installed; make peers must try it. Remove .venv-peers and repeat.")
    return [
        pytest.mark.peers,
        pytest.mark.filterwarnings("ignore"),
        pytest.mark.skipif(not there, reason=f"{package} is not installed"),
    ]


def world(program: Callable[..., None], *arguments: Any, ranks: int = RANKS) -> None:
    """Run `program(rank, ranks, *arguments)` in so many processes."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    mp.spawn(_rank, (ranks, port, program, arguments), nprocs=ranks)  # type: ignore[no-untyped-call]


def _rank(rank: int, ranks: int, port: int, program: Callable[..., None], arguments: tuple[Any, ...]) -> None:
    os.environ.update(
        DS_ACCELERATOR="cpu", MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(rank), LOCAL_RANK=str(rank),
        WORLD_SIZE=str(ranks), GLOO_SOCKET_IFNAME="lo", OMP_NUM_THREADS="1",
    )  # fmt: skip
    torch.set_num_threads(1)
    program(rank, ranks, *arguments)
    if dist.is_initialized():
        dist.barrier()  # the first holds the store that the others still speak to
    for child in multiprocessing.active_children():  # megatron-core's writers would wait for work for ever
        child.terminate()
        child.join(10)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # threads that a peer leaves behind, torn down with the interpreter, now and then abort the process


def deepspeed() -> Any:
    """DeepSpeed, ready. Without an all-reduce through shared memory that it would compile first, for half a minute, and
    not at all in a folder with a space in its name. (`deepspeed.comm.torch` is torch itself, not its module.)"""
    import deepspeed

    sys.modules["deepspeed.comm.torch"].build_shm_op = lambda: None  # type: ignore[attr-defined]
    deepspeed.init_distributed("gloo")
    return deepspeed


class Net(nn.Module):
    """Sizes most of which two ranks cannot divide, buffers of two types, and a part that is not trained."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.a, self.bn, self.frozen, self.b = nn.Linear(7, 11), nn.BatchNorm1d(11), nn.Linear(11, 11), nn.Linear(11, 4)
        for parameter in self.frozen.parameters():
            parameter.requires_grad_(False)

    def forward(self, x: torch.Tensor) -> Any:
        return self.b(self.frozen(self.bn(self.a(x))))


def program(seed: int = 0) -> tuple[Net, torch.optim.AdamW]:
    net = Net(seed)
    decayed = {"params": [net.a.weight, net.b.weight], "weight_decay": 0.1, "lr": 1e-2}
    plain = {"params": [net.a.bias, net.b.bias, net.bn.weight, net.bn.bias], "weight_decay": 0.0, "lr": 3e-3}
    return net, torch.optim.AdamW([decayed, plain])


def batch(step: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The same on every rank, so that buffers are too."""
    draws = torch.Generator().manual_seed(step)
    return torch.randn(4, 7, generator=draws), torch.randn(4, 4, generator=draws)


def kept(tensors: Tensors, path: Path) -> None:
    torch.save({name: tensor.detach().clone() for name, tensor in tensors.items()}, path)
