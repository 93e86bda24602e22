"""What a checkpoint of every step costs a training loop: everstep, and what others offer, against none at all.

python -m bench.overhead [--quick] [--only TEXT]... [--json FILE | --append FILE]

Needs a GPU; `--quick` measures a tiny model on the CPU instead. `--only` takes the cases that hold the text, several
times for several. Results are written after each program, so that a run cut short keeps what it measured; `--append`
adds to a file of the same machine and replaces rows of the same case and metric.
"""

import argparse
import gc
import json
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator
from contextlib import nullcontext
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist

from bench.harness import Row, document, show
from bench.models import Program, build
from bench.overhead import peered, recorded
from bench.overhead.blocks import host_bandwidth, settle, slowest, tight, timed
from bench.overhead.cases import FULL, QUICK, Job, chosen
from bench.overhead.costs import spread_pct
from bench.overhead.results import merged
from bench.overhead.say import say
from bench.peers import missing

WARM = 5


def main() -> int:
    options = argparse.ArgumentParser(prog="python -m bench.overhead")
    options.add_argument("--quick", action="store_true")
    options.add_argument("--only", action="append", default=[], metavar="TEXT")
    options.add_argument("--json", type=Path, metavar="FILE")
    options.add_argument("--append", type=Path, metavar="FILE")
    given = options.parse_args()
    known = QUICK if given.quick else FULL
    jobs = chosen(known, given.only)
    if not jobs:
        options.error("no such case. There are:\n" + "\n".join(case for job in known for case in job.cases()))
    if not given.quick and not torch.cuda.is_available():
        options.error("this needs a GPU; --quick does not")
    old = json.loads(given.append.read_text()) if given.append and given.append.exists() else None
    found: list[Row] = []
    failures = 0
    merged(old, document("overhead", [], quick=given.quick))  # refused now, not after the work
    for job in jobs:
        for answer in run(job, torch.device("cpu" if given.quick else "cuda")):
            failures += answer is None
            found += answer or []
        result = document("overhead", found, quick=given.quick)
        for path in (given.json, given.append):
            if path is not None:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(json.dumps(merged(old if path == given.append else None, result), indent=1) + "\n")
    show("overhead", found)
    if dist.is_initialized():
        dist.destroy_process_group()
    return 1 if failures else 0


def run(job: Job, device: torch.device) -> Iterator[list[Row] | None]:
    """The rows of each case of a job; None for one that failed, whose traceback is shown."""
    torch.set_float32_matmul_precision("high")
    if device.type == "cpu":
        torch.set_num_threads(1)  # a core stays free for the disk's side, as it does beside a GPU
    began = time.perf_counter()
    program = build(job.model, compiled=job.compiled, device=device)
    timed(program, WARM)
    say(f"{job.label}: built and warm after {time.perf_counter() - began:.1f} s")
    with tempfile.TemporaryDirectory(prefix="everstep-bench-") as home:
        with tight(program) if job.plan.tight else nullcontext():
            if job.sources:
                yield from sources(job, program, Path(home))
        for name in job.peers:
            yield one_peer(job, program, name, Path(home))
    del program
    gc.collect()
    torch._dynamo.reset()
    if device.type == "cuda":
        settle(device)
        torch.cuda.empty_cache()


def sources(job: Job, program: Program, home: Path) -> Iterator[list[Row] | None]:
    """A, B, A, C, A, ...: every block with everstep stands between two without."""
    bandwidth = host_bandwidth(program.device) if program.device.type == "cuda" else None
    turns: dict[str, list[recorded.Turn]] = {source: [] for source in job.sources}
    plan = job.plan
    plain = partial(timed, program, plan.measured, warm=plan.warm, warm_s=plan.warm_s, logged=plan.logged)
    before = plain()
    without = [before]
    for _ in range(plan.rounds):
        for source in list(turns):
            try:
                during = recorded.record(program, source, plan, home)
            except Exception:  # noqa: BLE001 one case must not take the others with it
                traceback.print_exc()
                del turns[source]
                yield None
                continue
            after = plain()
            without.append(after)
            turns[source].append(recorded.Turn(before, during, after))
            say(
                f"{job.label}, {source}: {1e3 * before.step_s:.2f}, {1e3 * during.block.step_s:.2f}, "
                f"{1e3 * after.step_s:.2f} ms; {slowest(during.block)}"
            )
            before = after
    if bandwidth is not None and turns:
        yield [
            Row(job.label, "host_bandwidth", bandwidth / 1e9, "GB/s", "one pinned copy, device idle"),
            Row(job.label, "noise_pct", spread_pct(without), "%", "slowest against fastest block without checkpoint"),
        ]
    for source, taken in turns.items():
        yield recorded.rows(f"{job.label}, {source}", source, program, taken, bandwidth)


def one_peer(job: Job, program: Program, name: str, home: Path) -> list[Row] | None:
    case = f"{job.label}, {name}"
    if (package := missing(name)) is not None:
        say(f"{case}: left out, {package} is not installed")
        return []
    try:
        found = peered.measure(program, name, job.plan, home)
    except Exception:  # noqa: BLE001 one case must not take the others with it
        traceback.print_exc()
        return None
    shown = ", ".join(f"every {every}: {1e3 * block.step_s:.2f}" for every, block in sorted(found.blocks.items()))
    say(f"{case}: {1e3 * found.before.step_s:.2f}, {shown}, {1e3 * found.after.step_s:.2f} ms")
    return peered.rows(case, program, found)


if __name__ == "__main__":
    sys.exit(main())
