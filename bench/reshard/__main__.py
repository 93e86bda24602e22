"""A run saved by one parallelism, loaded by others: everstep, DCP and DeepSpeed on the same disk in the same run; and
planning for thousands of ranks.

python -m bench.reshard [--quick] [--deepspeed-python PATH] [--only TEXT]... [--json FILE]

CPU and gloo. `--deepspeed-python`: an interpreter that has deepspeed; without it that part is left out. `--only`: of
"plan", "save", and the targets' names, those that hold the text. Results are written after each part.
"""

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

from bench.harness import Row, document, show
from bench.reshard import loading, rows, saving, scale
from bench.reshard.cases import FULL, QUICK, SAVED, TARGETS, Plan, Target
from bench.reshard.gauge import Taken, together
from bench.reshard.worlds import world

NO_TENSOR_PARALLEL = "ZeRO has no tensor parallelism for a plain model"


def main() -> int:
    options = argparse.ArgumentParser(prog="python -m bench.reshard")
    options.add_argument("--quick", action="store_true")
    options.add_argument("--deepspeed-python", metavar="PATH")
    options.add_argument("--only", action="append", default=[], metavar="TEXT")
    options.add_argument("--json", type=Path, metavar="FILE")
    given = options.parse_args()
    found: list[Row] = []
    try:
        for row in measured(QUICK if given.quick else FULL, given.deepspeed_python, given.only, quick=given.quick):
            found.append(row)
            if given.json:
                given.json.parent.mkdir(parents=True, exist_ok=True)
                given.json.write_text(json.dumps(document("reshard", found, quick=given.quick), indent=1) + "\n")
    finally:
        show("reshard", found)
    return 0


def measured(plan: Plan, python: str | None, only: list[str], *, quick: bool) -> Iterator[Row]:
    if chosen("plan", only):
        yield from scale.rows(quick)
    targets = [target for target in TARGETS if chosen(target.title, only)]
    if not targets and not chosen("save", only):
        return
    home = Path(tempfile.mkdtemp(prefix="everstep-bench-"))
    try:
        saved = world(SAVED.world, saving.save, plan, SAVED, home)
        shutil.rmtree(home / "dcp-before")
        model = rows.titled(saved)
        yield from rows.of_saving(model, saved)
        fastest: dict[str, float] = {}
        for target in targets:
            ranks = world(target.world, loading.load, plan, target, home)
            for row in rows.of_loading(model, plan, target, ranks):
                if row.metric == "load, from a base" and row.case.endswith("cold"):
                    fastest[target.title] = row.value
                yield row
        for name in ("run", "dcp"):
            shutil.rmtree(home / name)
        yield from deepspeed(plan, python, model, targets, fastest, home)
    finally:
        shutil.rmtree(home)


def deepspeed(
    plan: Plan, python: str | None, model: str, targets: list[Target], load_s: dict[str, float], home: Path
) -> Iterator[Row]:
    """Its own save, conversion and loads, once each: they take minutes. What cannot run says why."""
    why = None if python else "no --deepspeed-python was given"
    if python and targets:
        try:
            _zero(python, "save", SAVED.world, plan, home)
            (converted,) = _zero(python, "convert", 1, plan, home)
        except subprocess.CalledProcessError as failed:
            why = _last(failed)
    for target in targets:
        if why is not None or not target.zero:
            yield rows.not_measured(model, target, why or NO_TENSOR_PARALLEL)
            continue
        assert python is not None
        try:
            loaded = together(_zero(python, "load", target.world, plan, home))
        except subprocess.CalledProcessError as failed:
            yield rows.not_measured(model, target, _last(failed))
        else:
            yield from rows.of_zero(model, target, load_s[target.title], converted, loaded)


def chosen(name: str, only: list[str]) -> bool:
    return not only or any(text in name for text in only)


def _zero(python: str, verb: str, size: int, plan: Plan, home: Path) -> list[Taken]:
    command = [python, "-m", "bench.reshard.zero", verb, str(home), str(size), "cold", json.dumps(asdict(plan.shape))]
    said = subprocess.run(command, check=True, capture_output=True, text=True, cwd=Path(__file__).parents[2])
    return [Taken(**json.loads(line)) for line in said.stdout.splitlines() if line.startswith("{")]


def _last(failed: subprocess.CalledProcessError) -> str:
    """What a process said before it ended, without the paths of this machine."""
    lines = [line for line in str(failed.stderr).splitlines() if line.strip() and "/" not in line]
    return f"{failed.cmd[3]} ended with {failed.returncode}: {lines[-1][:120] if lines else 'no message'}"


if __name__ == "__main__":
    sys.exit(main())
