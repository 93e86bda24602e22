"""A block of training steps on the clock, the device's own where there is one.

Nothing here waits for the device inside a block, nor between its warm-up and what is measured. At its ends only the
training stream is waited for: a copy that is still under way beside it belongs to the next step.
"""

import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from typing import Any

import torch

from bench.models import Program

OFF_THE_CLOCK = -1_000_000
"""What `after` is told while a program warms up for a time."""


@dataclass(frozen=True, slots=True)
class Block:
    steps_ms: tuple[float, ...]
    """From the end of one step to the end of the next: whatever holds one up is in it."""
    gpu_bytes: int
    """The most that tensors took, those included that are gone but still being copied; 0 without a GPU."""

    @property
    def step_s(self) -> float:
        return statistics.fmean(self.steps_ms) / 1e3


def timed(
    program: Program, steps: int, after: Callable[[int], None] | None = None,
    *, warm: int = 0, warm_s: float = 0.0, logged: bool = False,
) -> Block:  # fmt: skip
    """Train `warm` times, and for so many seconds, and then `steps` times on the clock, calling `after` after each, and
    reading its loss. A GPU that has paused is faster for a second than it can be for long."""
    marks = Marks(program.device)
    settle(program.device)
    if program.device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    began = time.perf_counter()
    for at in chain(_until(began + warm_s), range(-warm, steps)):
        if at == 0:
            marks.add()
        loss = program.step()
        if after is not None:
            after(at)
        if logged:
            loss.item()
        if at >= 0:
            marks.add()
    settle(program.device)
    peak = torch.cuda.memory_stats()["active_bytes.all.peak"] if program.device.type == "cuda" else 0
    return Block(marks.milliseconds(), peak)


def _until(end: float) -> Iterator[int]:
    while time.perf_counter() < end:
        yield OFF_THE_CLOCK


def settle(device: torch.device) -> None:
    """Wait for the training stream."""
    if device.type == "cuda":
        torch.cuda.current_stream().synchronize()


@contextmanager
def tight(program: Program) -> Iterator[None]:
    """A device with one per cent more memory than torch's allocator takes for this program."""
    settle(program.device)
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    timed(program, 3)
    share = 1.01 * torch.cuda.max_memory_reserved() / torch.cuda.get_device_properties(program.device).total_memory
    torch.cuda.set_per_process_memory_fraction(share)
    try:
        yield
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)


def slowest(block: Block, count: int = 4) -> str:
    """Which steps took longest: those that waited, where any did."""
    times = sorted(enumerate(block.steps_ms), key=lambda timed: -timed[1])[:count]
    return "slowest: " + ", ".join(f"{ms:.1f} ms (step {at})" for at, ms in times)


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
