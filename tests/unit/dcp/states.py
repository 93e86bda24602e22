"""A small state of every kind that a training program saves, and the calls of torch that save and load it."""

import re
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as torch_dcp
from torch.distributed.checkpoint.api import CheckpointException

from everstep.dcp import Reader, Writer

MIB = 1 << 20


def made(seed: int = 0) -> dict[str, Any]:
    """Tensors below and above a block, without elements, without axes, of several types; and plain values."""
    torch.manual_seed(seed)
    return {
        "model": {
            "large": torch.randn(5 * MIB // 4 + 3),
            "matrix": torch.randn(37, 41).to(torch.bfloat16),
            "empty": torch.zeros(0, 3),
            "mask": torch.arange(9) % 2 == seed,
        },
        "step": torch.tensor(float(seed)),
        "epoch": seed,
        "schedule": {"rates": [0.1 * seed, 0.2], "name": "cosine", "last": None},
    }


def blank() -> dict[str, Any]:
    found = made()
    found["model"] = {name: torch.zeros_like(tensor) for name, tensor in found["model"].items()}
    return {**found, "step": torch.tensor(-1.0), "epoch": -1, "schedule": {"rates": [0.0, 0.0], "name": "", "last": 0}}


def save(path: Path, state: dict[str, Any], writer: Any = None) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch says that this is one process
        torch_dcp.save(state, storage_writer=writer or Writer(path))


def load(path: Path, reader: Any = None, state: dict[str, Any] | None = None, planner: Any = None) -> dict[str, Any]:
    state = blank() if state is None else state
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch_dcp.load(state, storage_reader=reader or Reader(path), planner=planner)
    return state


def differences(one: Any, two: Any, name: str = "") -> list[str]:
    if isinstance(one, dict):
        assert one.keys() == two.keys()
        return [found for key in one for found in differences(one[key], two[key], f"{name}/{key}")]
    if isinstance(one, torch.Tensor):
        return [] if one.dtype == two.dtype and torch.equal(one, two) else [name]
    return [] if one == two else [name]


def refused(work: Callable[[], object], pattern: str) -> str:
    """The message with which everstep refuses, out of what torch wraps around it."""
    with pytest.raises(CheckpointException) as caught:
        work()
    found = " ".join(str(error) for error, _ in caught.value.failures.values())
    assert re.search(pattern, found), found
    return found
