"""One state, saved by all: everstep's base and some records after it, and DCP's checkpoint of the very same base."""

import shutil
import time
from dataclasses import dataclass
from pathlib import Path

import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict

import everstep
from bench.harness import seconds
from bench.reshard.cases import Plan, Target
from bench.reshard.program import Program
from bench.reshard.worlds import begun


@dataclass(frozen=True, slots=True)
class Saved:
    """What one rank saw. `blocks`: how long its training loop stood still. `durable`: from the call to the disk."""

    nbytes: int
    parameters: int
    base_blocks: float
    base_durable: float
    commit_blocks: tuple[float, ...]
    commit_durable: float
    dcp_blocks: tuple[float, ...]


def save(_rank: int, plan: Plan, source: Target, home: Path) -> Saved:
    program = Program(plan.shape, source.kind)
    program.step()  # so that there are moments
    dcp_blocks = []
    for place in ("dcp-before", "dcp"):  # the first one warms up
        begun()
        dcp_blocks.append(seconds(lambda: _by_dcp(program, home / place)))  # noqa: B023
    begun()
    run = everstep.open(home / "run", model=program.model, optimizer=program.optimizer, settings=settings())
    began = time.perf_counter()
    run.resume()
    base_blocks = time.perf_counter() - began
    run.wait()
    base_durable = time.perf_counter() - began
    blocks = []
    for _ in range(plan.steps):
        program.step()
        began = time.perf_counter()
        run.commit()
        blocks.append(time.perf_counter() - began)
        run.wait()
        durable = time.perf_counter() - began
    run.close()
    whole = sum(parameter.numel() for parameter in program.model.parameters())
    return Saved(program.nbytes, whole, base_blocks, base_durable, tuple(blocks), durable, tuple(dcp_blocks))


def settings() -> everstep.Settings:
    """No base of its own accord among the few records, so that there is a log to replay."""
    return everstep.Settings(linger_seconds=0.0, base_log_bytes_max=1 << 50, replay_seconds_max=3600.0)


def _by_dcp(program: Program, place: Path) -> None:
    model, optimizer = get_state_dict(program.model, program.optimizer)
    dcp.save({"model": model, "optimizer": optimizer}, checkpoint_id=str(place))


def beside(run: Path, place: Path) -> Path:
    """The same run for one resume: large files are linked, because nobody changes them, the others are copied."""
    shutil.rmtree(place, ignore_errors=True)
    for path in sorted(path for path in run.rglob("*") if path.is_file() and path.name != "lease"):
        target = place / path.relative_to(run)
        target.parent.mkdir(parents=True, exist_ok=True)
        if path.suffix in (".safetensors", ".seg"):
            target.hardlink_to(path)
        else:
            shutil.copy2(path, target)
    return place
