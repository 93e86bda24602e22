"""Twins: a torch optimizer and the native rule, fed with the same gradients, compared bit by bit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from everstep.native import _kernels, square_root

LENGTHS = (0, 1, 3, 7, 8, 15, 16, 17, 31, 33, 63, 64, 65, 1001, 5000)
FLAGS: dict[str, dict[str, bool]] = {
    "single": {"foreach": False, "fused": False},
    "foreach": {"foreach": True, "fused": False},
    "fused": {"fused": True},
}


def ordinary(generator: torch.Generator, length: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.randn(length, dtype=dtype, generator=generator)


def wild(generator: torch.Generator, length: int, dtype: torch.dtype) -> torch.Tensor:
    """Zeros of both signs, denormals, and magnitudes up to squares that nearly or really overflow."""
    lowest, highest = (-149, 70) if dtype == torch.float32 else (-1074, 520)
    exponents = torch.randint(lowest, highest, (length,), generator=generator)
    values = torch.ldexp(ordinary(generator, length, dtype), exponents)
    chosen = torch.rand(length, generator=generator)
    return torch.where(chosen < 0.05, torch.copysign(torch.zeros_like(values), values), values)


@dataclass
class Run:
    """What both twins are given."""

    implementation: str
    hyper: Sequence[tuple[float, ...]]
    dtype: torch.dtype = torch.float32
    lengths: Sequence[int] = LENGTHS
    steps: int = 24
    at_once: int = 5
    draw: Callable[[torch.Generator, int, torch.dtype], torch.Tensor] = ordinary
    skipping: bool = False
    threads: int = 2
    options: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        generator = torch.Generator().manual_seed(7)
        self.start = [torch.randn(n, dtype=self.dtype, generator=generator) for n in self.lengths]
        self.gradients = [[self.draw(generator, n, self.dtype) for n in self.lengths] for _ in range(self.steps)]
        self.rows = [self.hyper[j % len(self.hyper)] for j in range(self.steps)]

    def has_gradient(self, step: int, tensor: int) -> bool:
        return not (self.skipping and step > 0 and (step + tensor) % 3 == 0)

    def train(self, optimizer: torch.optim.Optimizer, names: Sequence[str]) -> None:
        """Runs torch's optimizer, with the hyperparameters `names` changing from step to step."""
        for j, row in enumerate(self.rows):
            for group in optimizer.param_groups:
                group.update(_group(dict(zip(names, row, strict=True))))
                for i, parameter in enumerate(group["params"]):
                    parameter.grad = self.gradients[j][i].clone() if self.has_gradient(j, i) else None
            optimizer.step()

    def addresses(self, step: int) -> list[int]:
        return [g.data_ptr() if self.has_gradient(step, i) else 0 for i, g in enumerate(self.gradients[step])]

    def chunks(self) -> list[range]:
        return [range(j, min(j + self.at_once, self.steps)) for j in range(0, self.steps, self.at_once)]


def _group(values: dict[str, float]) -> dict[str, Any]:
    if "beta1" in values:
        return {"betas": (values.pop("beta1"), values.pop("beta2")), **values}
    return dict(values)


def adam_twins(run: Run, optimizer: type[torch.optim.Adam]) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """(torch's, ours): parameters, exp_avg, exp_avg_sq and, with amsgrad, max_exp_avg_sq after the run."""
    names = ["lr", "beta1", "beta2", "eps", "weight_decay"]
    parameters = [torch.nn.Parameter(p.clone()) for p in run.start]
    teacher = optimizer(parameters, **run.options, **FLAGS[run.implementation])
    run.train(teacher, names)
    keys = ["exp_avg", "exp_avg_sq"] + (["max_exp_avg_sq"] if run.options.get("amsgrad") else [])
    expected = [p.detach() for p in parameters] + [teacher.state[p][key] for key in keys for p in parameters]

    ours = {key: [torch.zeros_like(p) for p in run.start] for key in keys}
    targets = [p.clone() for p in run.start]
    counted = [0.0] * len(targets)
    lr_float32 = run.implementation == "single" and isinstance(run.rows[0][0], torch.Tensor)
    for chunk in run.chunks():
        steps = []
        for j in chunk:
            counted = [count + run.has_gradient(j, i) for i, count in enumerate(counted)]
            steps.append(counted)
        _kernels.adam(
            run.implementation,  # type: ignore[arg-type]
            [t.data_ptr() for t in targets],
            *([t.data_ptr() for t in ours.get(key, [])] for key in ("exp_avg", "exp_avg_sq", "max_exp_avg_sq")),
            list(run.lengths),
            [run.addresses(j) for j in chunk],
            steps,
            [tuple(float(value) for value in run.rows[j]) for j in chunk],  # type: ignore[misc]
            decoupled=optimizer is torch.optim.AdamW,
            maximize=run.options.get("maximize", False),
            double=run.dtype == torch.float64,
            lr_float32=lr_float32,
            square_root=0 if run.implementation == "fused" else square_root.address(run.dtype),
            threads=run.threads,
        )
    return expected, targets + [t for key in keys for t in ours[key]]


def sgd_twins(run: Run) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """(torch's, ours): parameters and, with momentum, momentum buffers after the run."""
    names = ["lr", "momentum", "dampening", "weight_decay"]
    momentum = run.rows[0][1] != 0
    parameters = [torch.nn.Parameter(p.clone()) for p in run.start]
    first = dict(zip(names, run.rows[0], strict=True))
    teacher = torch.optim.SGD(parameters, **first, **run.options, **FLAGS[run.implementation])  # type: ignore[arg-type]
    run.train(teacher, names)
    expected = [p.detach() for p in parameters]
    expected += [teacher.state[p]["momentum_buffer"] for p in parameters] if momentum else []

    targets = [p.clone() for p in run.start]
    buffers = [torch.full_like(p, 7.0) for p in run.start] if momentum else []
    seen: set[int] = set()
    for chunk in run.chunks():
        firsts = []
        for j in chunk:
            now = {i for i in range(len(targets)) if run.has_gradient(j, i)}
            firsts.append([i in now - seen for i in range(len(targets))])
            seen |= now
        _kernels.sgd(
            run.implementation,  # type: ignore[arg-type]
            [t.data_ptr() for t in targets],
            [t.data_ptr() for t in buffers],
            list(run.lengths),
            [run.addresses(j) for j in chunk],
            firsts,
            [tuple(float(value) for value in run.rows[j]) for j in chunk],  # type: ignore[misc]
            nesterov=run.options.get("nesterov", False),
            maximize=run.options.get("maximize", False),
            double=run.dtype == torch.float64,
            threads=run.threads,
        )
    return expected, targets + buffers


def bits_differing(expected: Sequence[torch.Tensor], actual: Sequence[torch.Tensor]) -> int:
    """Elements that differ in any bit."""
    assert len(expected) == len(actual)
    words = {torch.float32: torch.int32, torch.float64: torch.int64}
    pairs = zip(expected, actual, strict=True)
    return sum(int((a.view(words[a.dtype]) != b.view(words[b.dtype])).sum()) for a, b in pairs)
