"""Writes tests/format/golden/v1_parts: runs whose tensors are parts of others, by one rank and by two. Run once.

    .venv/bin/python -m tests.format.make_golden_parts

As in `make_golden`, all numbers are small multiples of powers of two. What is expected comes from the whole tensors,
trained by plain torch.
"""

import json
import math
import shutil
import tempfile
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn

import everstep
from everstep.capture.digests import digest
from everstep.layout import Flat, Fused, Mesh, Pad, Replicate, Rule, Shard, Slice, Spec
from everstep.types import printed
from tests.cluster.specs import fill

HERE = Path(__file__).parent / "golden" / "v1_parts"
WORLDS = (1, 2)
STEPS = 3
LOGICAL = {"embed": (5, 2), "qkv": (6, 2), "flat": (3, 3), "plain": (4,)}
HEADS = Fused(0, tuple(Slice(2, (Shard("tp", 0),)) for _ in range(3)))
RULES = (
    Rule("embed", (Pad(0, 2, "tp"), Shard("tp", 0))),
    Rule("qkv", (HEADS,)),
    Rule("flat", (Flat("tp", pad=4),)),
    Rule("plain", (Replicate("tp"),)),
)


def spec(world: int) -> Spec:
    return Spec(Mesh((("tp", world),)), RULES, shapes=LOGICAL)


def value(name: str, at: int) -> torch.Tensor:
    """The tensor of a name before the first step, and its gradient in every step."""
    shape = LOGICAL[name]
    return ((torch.arange(math.prod(shape)) + at + len(name)) % 8 / 4).reshape(shape)


class Program:
    """What one rank holds, and trains."""

    def __init__(self, rank: int, world: int) -> None:
        self.held = spec(world).locals(LOGICAL, rank)
        self.model = nn.Module()
        for name, held in self.held.items():
            start = torch.zeros(held.shape)
            fill(start, held, value(name, 0))
            self.model.register_parameter(name, nn.Parameter(start))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.25, momentum=0.5)

    def step(self, at: int) -> None:
        for name, parameter in self.model.named_parameters():
            parameter.grad = torch.zeros_like(parameter)
            fill(parameter.grad, self.held[name], value(name, at))
        if at == STEPS - 1:
            with torch.no_grad():
                self.model.plain.add_(1.0)  # behind the optimizer's back: this step is kept as a base
        self.optimizer.step()


def train(path: Path, rank: int, world: int, steps: int) -> int:
    program = Program(rank, world)
    with everstep.open(path, model=program.model, optimizer=program.optimizer, spec=spec(world)) as run:
        start = run.resume()
        run.wait(timeout=60)
        for at in range(start + 1, start + steps + 1):
            program.step(at)
            run.commit()
            run.wait(timeout=60)
    return start + steps


def expected(steps: int) -> dict[str, dict[str, str]]:
    """The digest of every logical tensor after each step, by the names that a restore gives."""
    whole = {name: nn.Parameter(value(name, 0)) for name in LOGICAL}
    optimizer = torch.optim.SGD(whole.values(), lr=0.25, momentum=0.5)
    seen: dict[str, dict[str, str]] = {}
    for at in range(1, steps + 1):
        for name, parameter in whole.items():
            parameter.grad = value(name, at)
        if at == STEPS - 1:
            with torch.no_grad():
                whole["plain"].add_(1.0)
        optimizer.step()
        tensors = {f"model/{name}": parameter.detach() for name, parameter in whole.items()}
        for name, parameter in whole.items():
            tensors[f"optimizer/main/{name}/momentum_buffer"] = optimizer.state[parameter]["momentum_buffer"]
        seen[str(at)] = digests(tensors)
    return seen


def digests(tensors: dict[str, Any]) -> dict[str, str]:
    return dict(zip(tensors, map(printed, digest(list(tensors.values()))), strict=True))


def rank_of(rank: int, world: int, meeting: str) -> None:
    dist.init_process_group("gloo", store=dist.FileStore(meeting, world), rank=rank, world_size=world)
    assert train(HERE / f"run{world}", rank, world, STEPS) == STEPS
    dist.destroy_process_group()


def main() -> None:
    shutil.rmtree(HERE, ignore_errors=True)
    HERE.mkdir(parents=True)
    for world in WORLDS:
        with tempfile.TemporaryDirectory() as home:
            mp.spawn(rank_of, (world, f"{home}/meeting"), nprocs=world)  # type: ignore[no-untyped-call]
    for lease in HERE.rglob("lease"):
        lease.unlink()
    (HERE / "expected.json").write_text(json.dumps(expected(STEPS), indent=1) + "\n")


if __name__ == "__main__":
    main()
