"""Writes tests/format/golden/v1: a run of format 1 and what every step of it held. Run once per format, never again.

    .venv/bin/python -m tests.format.make_golden

All numbers are small multiples of powers of two, so every machine computes the same bits whatever it fuses or rounds.
"""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy
import torch

import everstep
from everstep.capture.digests import digest
from everstep.types import printed

HERE = Path(__file__).parent / "golden" / "v1"
STEPS = 4
EPOCHS = 2


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.arange(6.0).reshape(3, 2))
        self.bias = torch.nn.Parameter(torch.ones(2, dtype=torch.float64))
        self.frozen = torch.nn.Parameter(torch.tensor([1.5, -2.0], dtype=torch.bfloat16), requires_grad=False)
        self.scalar = torch.nn.Parameter(torch.tensor(2.0))
        self.empty = torch.nn.Parameter(torch.empty(0, 3))
        self.register_buffer("mask", torch.tensor([True, False, True]))
        self.register_buffer("phase", torch.tensor([1 + 2j, -1j], dtype=torch.complex64))
        self.register_buffer("wide", torch.tensor([0.5 - 0.25j], dtype=torch.complex128))


class Notes:
    """Something in `state=` with one value of every form a tree has."""

    def __init__(self) -> None:
        self.held: dict[str, Any] = {}

    def step(self, at: int) -> None:
        self.held = {
            "none": None, "yes": True, "int": at, "big": 3**100 + at, "float": at / 4, "inf": float("-inf"),
            "text": "\u00e9\n", "bytes": bytes([at, 255]), "tuple": (1, (at,)), "set": {3, 1, at + 10},
            "keys": {at: "a", "$": "b"},
            "list": [[], {}], "tensor": torch.tensor([at], dtype=torch.int16), "array": numpy.arange(at, dtype="<u2"),
            "number": numpy.float32(at),
        }  # fmt: skip

    def state_dict(self) -> dict[str, Any]:
        return self.held

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.held = state


def held(model: Model, optimizer: torch.optim.Optimizer) -> dict[str, str]:
    """The digest of everything a step holds, by the names a base uses."""
    tensors = {f"model/{name}": p.detach() for name, p in model.named_parameters()}
    tensors |= {f"buffer/{name}": b for name, b in model.named_buffers()}
    for name, p in model.named_parameters():
        if isinstance(momentum := optimizer.state.get(p, {}).get("momentum_buffer"), torch.Tensor):
            tensors[f"optimizer/main/{name}/momentum_buffer"] = momentum
    return {name: printed(pair) for name, pair in zip(tensors, digest(list(tensors.values())), strict=True)}


def told(notes: dict[str, Any]) -> str:
    return repr(notes | {"set": sorted(notes["set"])})  # a set has no order of its own


def train(path: Path, seen: dict[str, Any], steps: int) -> int:
    model, notes = Model(), Notes()
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.25, momentum=0.5)
    settings = everstep.Settings(segment_bytes=15_000, digest_every=2)
    notes.step(0)
    run = everstep.open(path, model=model, optimizer=optimizer, state={"notes": notes}, settings=settings)
    start = run.resume()
    run.wait()
    for at in range(start + 1, start + steps + 1):
        for number, p in enumerate(p for p in model.parameters() if p.requires_grad):
            p.grad = torch.full_like(p, (at + number) / 4)
        if at == 3:
            with torch.no_grad():
                model.scalar.add_(1.0)  # behind the optimizer's back: this step is kept as a base
        optimizer.step()
        model.mask.logical_not_()
        notes.step(at)
        run.commit()
        run.wait()
        seen[str(at)] = {"tensors": held(model, optimizer), "notes": told(notes.held)}
    run.close()
    return start + steps


def main() -> None:
    shutil.rmtree(HERE, ignore_errors=True)
    HERE.mkdir(parents=True)
    seen: dict[str, Any] = {}
    for _ in range(EPOCHS):
        train(HERE / "run", seen, STEPS)
    (HERE / "run" / "w00000" / "lease").unlink()
    (HERE / "expected.json").write_text(json.dumps(seen, indent=1) + "\n")


if __name__ == "__main__":
    main()
