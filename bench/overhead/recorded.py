"""everstep on a program: the same loop with and without it, in turns, and what each step cost."""

import gc
import os
import shutil
import statistics
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import everstep
from bench.harness import Row
from bench.models import Program
from bench.overhead.blocks import Block, timed
from bench.overhead.cases import Plan
from bench.overhead.costs import overhead_pct, p99
from bench.overhead.host import held_bytes, taken_bytes
from bench.overhead.say import say
from everstep.recording.states import WHOLE

GIB = 1 << 30
NONE = "no checkpoint"
TIERS = ("memory", "disk")


@dataclass(frozen=True, slots=True)
class Recorded:
    """A block with everstep in it."""

    block: Block
    lags: dict[str, list[int]]
    held_bytes: int
    taken_bytes: int
    not_recorded: int
    """Steps that are nowhere."""
    dropped: int
    """Steps that memory held and the disk was too slow for."""
    predicted_pct: float | None
    """What the run's own schedule says it costs; None where it says nothing."""
    held_back_ms: float
    """Per step: how long the device let training wait until a copy was done."""
    turned: bool
    """Whether whole states have taken the place of gradients."""


@dataclass(frozen=True, slots=True)
class Turn:
    """Without, with, without."""

    before: Block
    during: Recorded
    after: Block


def record(program: Program, source: str, plan: Plan, home: Path) -> Recorded:
    """Open a new run, train in it, close it. The warm-up is off the clock, but its steps must be recorded as well."""
    directory = Path(tempfile.mkdtemp(prefix="run-", dir=home))
    gc.collect()  # the run before lets go of its memory
    held, taken = held_bytes(directory), taken_bytes()
    run = everstep.open(directory, model=program.model, optimizer=program.optimizer, settings=settings(source, program))
    lags: dict[str, list[int]] = {tier: [] for tier in TIERS}

    def commit(at: int) -> None:
        step = run.commit()
        for tier, lag in lags.items() if at >= 0 else ():
            lag.append(step - run.acknowledged(tier))

    try:
        run.resume()
        block = timed(program, plan.measured, commit, warm=plan.warm, warm_s=plan.warm_s, logged=plan.logged)
        health, predicted = run.health, run.predicted
        if health.error:
            say(f"the run reports: {health.error}")
        return Recorded(
            block,
            lags,
            held_bytes(directory) - held,
            taken_bytes() - taken,
            health.not_recorded,
            health.dropped,
            None if predicted is None else 100 * predicted,
            1e3 * held_back(run) / max(1, health.committed),
            WHOLE in health.warnings,
        )
    finally:
        close(run)
        shutil.rmtree(directory, ignore_errors=True)


def held_back(run: everstep.Run) -> float:
    """In seconds, all steps together."""
    assert run._recording is not None
    return run._recording._mover.waited_seconds


def settings(source: str, program: Program) -> everstep.Settings:
    """Room for three states, or four, and twelve gradients: the parts of the default with a shorter ring, because
    pinning memory takes a second per four gigabytes."""
    kind, _, precision = source.partition(" ")
    states = (3 if kind in ("gradient", "layer") else 4) * int(1.03 * program.bytes_of("state"))
    gradients = 12 * program.bytes_of("gradient bf16" if precision == "bf16" else "gradient fp32")
    wanted = states + gradients + 2 * GIB // 4
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return everstep.Settings(
        source=kind,
        gradients="bf16" if precision == "bf16" else "exact",
        buffer_bytes_max=min(max(wanted, GIB), int(0.7 * memory)),
    )


def close(run: everstep.Run) -> None:
    try:
        run.close()
    except everstep.errors.EverstepError as error:  # the block was measured; what the disk did not take is shown
        say(f"close: {error}")


def rows(case: str, source: str, program: Program, turns: Sequence[Turn], bandwidth: float | None) -> list[Row]:
    """Everything about one case. `bandwidth` (bytes per second to the host) is None where no target applies."""
    plain_s = statistics.median(block.step_s for turn in turns for block in (turn.before, turn.after))
    plain_ms = [ms for turn in turns for block in (turn.before, turn.after) for ms in block.steps_ms]
    with_ms = [ms for turn in turns for ms in turn.during.block.steps_ms]
    wall = statistics.median(
        overhead_pct(turn.before.step_s, turn.during.block.step_s, turn.after.step_s) for turn in turns
    )
    middle = 100 * (statistics.median(with_ms) / statistics.median(plain_ms) - 1)
    nbytes = program.bytes_of(source)
    fits = bandwidth is None or source != "state" or nbytes / bandwidth <= plain_s
    found = [
        Row(case, "overhead_pct", wall, "%", NONE, overhead_target(source, nbytes, plain_s, bandwidth)),
        Row(case, "overhead_median_pct", middle, "%", NONE),
        Row(case, "step_ms", 1e3 * statistics.median(turn.during.block.step_s for turn in turns), "ms",
            f"{NONE}: {1e3 * plain_s:.2f} ms"),
        Row(case, "step_median_ms", statistics.median(with_ms), "ms", f"{NONE}: {statistics.median(plain_ms):.2f} ms"),
        Row(case, "step_p99_ms", p99(with_ms), "ms", f"{NONE}: {p99(plain_ms):.2f} ms"),
        Row(case, "stall_p99_ms", p99(with_ms) - statistics.median(plain_ms), "ms", f"median step with {NONE}"),
        Row(case, "bytes_per_step", nbytes / 1e6, "MB", "-"),
        Row(case, "not_recorded", sum(turn.during.not_recorded for turn in turns), "steps",
            f"of {len(with_ms)}", "<= 0" if fits and bandwidth is not None else None),
        Row(case, "memory_only", sum(turn.during.dropped for turn in turns), "steps", f"of {len(with_ms)}"),
    ]  # fmt: skip
    if program.device.type == "cuda":
        held = statistics.median(turn.during.held_back_ms for turn in turns)
        found.append(Row(case, "held_back_ms", held, "ms", "of a step, until copies were done"))
    if source == "auto":
        found.append(Row(case, "whole_states", sum(turn.during.turned for turn in turns), "turns", f"of {len(turns)}"))
    return found + memory_rows(case, turns, bandwidth) + lag_rows(case, turns) + schedule_rows(case, wall, turns)


def overhead_target(source: str, nbytes: int, step_s: float, bandwidth: float | None) -> str | None:
    """1 % for gradients, and for states that can be copied within a step; 1.5 % for states spread over several."""
    if bandwidth is None:
        return None
    return "<= 1.0" if source != "state" or nbytes / bandwidth <= step_s else "<= 1.5"


def memory_rows(case: str, turns: Sequence[Turn], bandwidth: float | None) -> list[Row]:
    held = max(turn.during.held_bytes for turn in turns) / GIB
    found = [Row(case, "host_memory_gib", held, "GiB", f"processes, beyond {NONE}")]
    if bandwidth is not None:
        plain = max(block.gpu_bytes for turn in turns for block in (turn.before, turn.after))
        peak = max(turn.during.block.gpu_bytes for turn in turns)
        taken = max(turn.during.taken_bytes for turn in turns) / GIB
        found += [
            Row(case, "machine_memory_gib", taken, "GiB", f"whole machine, beyond {NONE}"),
            Row(case, "gpu_active_pct", 100 * (peak / plain - 1), "%", f"{NONE}: {plain / GIB:.2f} GiB", "<= 1.0"),
        ]
    return found


def lag_rows(case: str, turns: Sequence[Turn]) -> list[Row]:
    """How many steps a tier is behind, right after each commit."""
    found = []
    for tier in TIERS:
        lags = [lag for turn in turns for lag in turn.during.lags[tier]]
        found.append(Row(case, f"lag_{tier}_median", statistics.median(lags), "steps", "the step just committed"))
        found.append(Row(case, f"lag_{tier}_max", max(lags), "steps", "the step just committed"))
    return found


def schedule_rows(case: str, measured_pct: float, turns: Sequence[Turn]) -> list[Row]:
    said = [turn.during.predicted_pct for turn in turns if turn.during.predicted_pct is not None]
    if not said:
        return []
    predicted = statistics.median(said)
    error = abs(predicted - measured_pct)
    return [
        Row(case, "predicted_overhead_pct", predicted, "%", f"measured: {measured_pct:.2f} %"),
        Row(case, "prediction_error_pp", error, "pp", "measured overhead", "<= 1.0"),
    ]
