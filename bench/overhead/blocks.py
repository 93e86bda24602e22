"""A block of training steps on the clock: each step by the device's own clock, the whole by the wall's.

Nothing here waits for the device inside a block. At its ends only the training stream is waited for: a copy that is
still under way beside it belongs to the next step, and is paid for there if it delays it.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from bench.models import Program


@dataclass(frozen=True, slots=True)
class Block:
    step_s: float
    """Wall clock of the whole block, per step."""
    steps_ms: tuple[float, ...]
    gpu_bytes: int
    """The most that tensors took; 0 without a GPU."""


def timed(program: Program, steps: int, after: Callable[[int], None] | None = None) -> Block:
    """Train `steps` times, calling `after` after each."""
    marks = Marks(program.device)
    settle(program.device)
    if program.device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    began = time.perf_counter()
    marks.add()
    for at in range(steps):
        program.step()
        if after is not None:
            after(at)
        marks.add()
    settle(program.device)
    spent = time.perf_counter() - began
    peak = torch.cuda.max_memory_allocated() if program.device.type == "cuda" else 0
    return Block(spent / steps, marks.milliseconds(), peak)


def settle(device: torch.device) -> None:
    """Wait for the training stream."""
    if device.type == "cuda":
        torch.cuda.current_stream().synchronize()


class Marks:
    """Instants on the device's clock (events in its stream; the wall clock on a CPU). Read them after `settle`."""

    def __init__(self, device: torch.device) -> None:
        self._cuda = device.type == "cuda"
        self._marks: list[Any] = []

    def add(self) -> None:
        if self._cuda:
            event = torch.cuda.Event(enable_timing=True)
            event.record()
            self._marks.append(event)
        else:
            self._marks.append(time.perf_counter())

    def milliseconds(self) -> tuple[float, ...]:
        """Between each two."""
        pairs = zip(self._marks, self._marks[1:], strict=False)
        return tuple(a.elapsed_time(b) if self._cuda else 1e3 * (b - a) for a, b in pairs)


def host_bandwidth(device: torch.device) -> float:
    """Bytes per second from the device into pinned memory."""
    source = torch.zeros(1 << 29, dtype=torch.uint8, device=device)
    target = torch.empty(1 << 29, dtype=torch.uint8, pin_memory=True)
    target.copy_(source)
    began = time.perf_counter()
    for _ in range(4):
        target.copy_(source, non_blocking=True)
    torch.cuda.synchronize()
    return 4 * source.numel() / (time.perf_counter() - began)
