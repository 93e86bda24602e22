"""A peer on a program: what one save costs, how that comes out at several intervals, and the shortest usable one."""

import gc
import os
import shutil
import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import torch

from bench.harness import Row
from bench.models import Program
from bench.overhead.blocks import Block, settle, timed
from bench.overhead.cases import Plan
from bench.overhead.costs import LIMIT_PCT, Cost, overhead_pct, p99, usable_interval
from bench.overhead.host import held_bytes, taken_bytes
from bench.peers import PEERS, Peer

GIB = 1 << 30
NONE = "no checkpoint"
WRITE_SECONDS_MAX = 60.0
INTERVALS = (10, 40, 100)
VERIFIED_MAX = 200
"""A usable interval of up to so many steps is measured, a longer one follows from the cost of a save."""
SAVES = 2


@dataclass(frozen=True, slots=True)
class Save:
    """One save, alone, with training going on until it is complete."""

    blocked_s: float
    write_s: float
    spent_s: float
    steps: int

    def cost(self, step_s: float) -> Cost:
        return Cost(step_s, max(0.0, self.spent_s - self.steps * step_s), self.write_s)


@dataclass(frozen=True, slots=True)
class Measured:
    """Everything one peer was seen to do."""

    before: Block
    after: Block
    save: Save
    planned: int
    """The interval that was expected to be usable."""
    blocks: dict[int, Block]
    held_bytes: int
    taken_bytes: int

    @property
    def step_s(self) -> float:
        return statistics.mean((self.before.step_s, self.after.step_s))


def measure(program: Program, name: str, plan: Plan, home: Path) -> Measured:
    """Without, with (at each interval), without."""
    before = timed(program, plan.measured, warm=plan.warm, warm_s=plan.warm_s)
    peer, steps, directory = PEERS[name](), count(1), home / name.replace(" ", "-")
    held, taken = held_bytes(directory), taken_bytes()
    peer.start(program.model, program.optimizer, directory)
    try:
        save_once(program, peer, next(steps))  # allocates, registers, starts processes
        save = save_once(program, peer, next(steps))
        blocks: dict[int, Block] = {}
        began = time.perf_counter()
        cost = save.cost(before.step_s)
        for every in intervals(cost):
            needed = (SAVES + 1) * cost.period_s(every)
            if every == 1 or time.perf_counter() - began + needed <= plan.peer_s:
                blocks[every] = save_every(program, peer, every, steps)
        held, taken = held_bytes(directory) - held, taken_bytes() - taken
    finally:
        peer.finish()
        del peer
        let_go(directory)
    return Measured(
        before,
        timed(program, plan.measured, warm=plan.warm, warm_s=plan.warm_s),
        save,
        cost.shortest_interval(),
        blocks,
        held,
        taken,
    )


def let_go(directory: Path) -> None:
    """So that the next peer finds the disk idle and no memory of this one to use again."""
    shutil.rmtree(directory, ignore_errors=True)
    os.sync()
    gc.collect()
    if torch.cuda.is_available():
        torch._C._host_emptyCache()


def intervals(cost: Cost) -> list[int]:
    """Every step, then the interval the model finds usable, then the usual ones."""
    usable = cost.shortest_interval()
    return list(dict.fromkeys([1, *([usable] if usable <= VERIFIED_MAX else []), *INTERVALS]))


def save_once(program: Program, peer: Peer, step: int) -> Save:
    settle(program.device)
    began = time.perf_counter()
    peer.save(step)
    blocked = time.perf_counter() - began
    write, trained = blocked, 0
    while trained < 4 or (peer.busy() and write < WRITE_SECONDS_MAX):
        program.step()
        trained += 1
        if peer.busy():
            write = time.perf_counter() - began
    settle(program.device)
    return Save(blocked, write, time.perf_counter() - began, trained)


def save_every(program: Program, peer: Peer, every: int, steps: Iterator[int]) -> Block:
    """A block in full swing: one whole interval comes before it, off the clock."""

    def after(at: int) -> None:
        if at % every == 0:
            peer.save(next(steps))

    return timed(program, SAVES * every, after, warm=every)


def rows(case: str, program: Program, found: Measured) -> list[Row]:
    cost = found.save.cost(found.step_s)
    plain_ms = [*found.before.steps_ms, *found.after.steps_ms]
    overheads = {
        every: overhead_pct(found.before.step_s, block.step_s, found.after.step_s)
        for every, block in found.blocks.items()
    }
    usable, because = usable_interval(cost, found.planned, overheads)
    answer = []
    for every, block in sorted(found.blocks.items()):
        each = f"{case}, every {every}"
        answer += [
            Row(each, "overhead_pct", overheads[every], "%", NONE),
            Row(each, "step_ms", 1e3 * block.step_s, "ms", f"{NONE}: {1e3 * found.step_s:.2f} ms"),
            Row(each, "stall_p99_ms", p99(block.steps_ms) - statistics.median(plain_ms), "ms",
                f"median step with {NONE}"),
        ]  # fmt: skip
    answer += [
        Row(case, "usable_interval", usable, "steps", f"<= {LIMIT_PCT} % overhead; {because}"),
        Row(case, "save_blocks_ms", 1e3 * found.save.blocked_s, "ms", "the call alone, device idle before it"),
        Row(case, "save_adds_ms", 1e3 * cost.extra_s, "ms", f"the same steps with {NONE}"),
        Row(case, "save_takes_s", found.save.write_s, "s", "from the call to the last byte handed over"),
        Row(case, "bytes_per_save", program.bytes_of("state") / 1e6, "MB", "-"),
        Row(case, "host_memory_gib", found.held_bytes / GIB, "GiB", f"processes, beyond {NONE}"),
    ]
    if program.device.type == "cuda":
        plain = max(found.before.gpu_bytes, found.after.gpu_bytes)
        peak = max(block.gpu_bytes for block in found.blocks.values())
        answer += [
            Row(case, "machine_memory_gib", found.taken_bytes / GIB, "GiB", f"whole machine, beyond {NONE}"),
            Row(case, "gpu_active_pct", 100 * (peak / plain - 1), "%", f"{NONE}: {plain / GIB:.2f} GiB"),
        ]
    return answer
