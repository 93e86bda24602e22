"""Which optimizers have a native rule, and whether it is proved here to equal torch's own, bit for bit.

Fused, foreach and single are three different roundings of the same formula; the rule follows the one the trainer ran.
A rule is used only after it reproduced torch on this machine, and its result is checked by digest like any other.
"""

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.optim import SGD, Adam, AdamW, Optimizer

from everstep import native
from everstep.capture.buckets import bare
from everstep.native import square_root

BLOCK = 4
"""Gradients applied in one pass over memory; more gains nothing (measured)."""
WAITING_BYTES = 256 << 20
"""Nor do more at a time, where they are large: whole records would stay in memory for them."""
CAPABILITIES = ("AVX2", "AVX512")
"""torch's CPU kernels whose roundings the rules reproduce; its plain C++ kernels round otherwise."""


@dataclass(slots=True)
class _Queue:
    """Gradients of one param group that wait to be applied together."""

    flags: tuple[Any, ...]
    gradients: list[dict[int, torch.Tensor]] = field(default_factory=list)
    hyper: list[tuple[float, ...]] = field(default_factory=list)


class Rules:
    """Native rules for the optimizers of one state. Gradients are queued; `flush` applies them."""

    def __init__(
        self, parameters: Mapping[str, torch.Tensor], optimizers: Mapping[str, Optimizer], threads: int
    ) -> None:
        self._parameters = parameters
        self._optimizers = optimizers
        self._threads = threads
        self._queues: dict[tuple[str, int], _Queue] = {}
        self._waiting_bytes = 0

    def take(self, key: str, gradients: Mapping[str, torch.Tensor]) -> bool:
        """Queue one update; False when this optimizer, as it is now, has no rule."""
        optimizer = self._optimizers[key]
        by_id = {id(self._parameters[name]): gradient for name, gradient in gradients.items()}
        plans = [_plan(optimizer, group, by_id) for group in optimizer.param_groups]
        if any(plan is None for plan in plans):
            return False
        for at, plan in enumerate(plans):
            assert plan is not None
            flags, hyper = plan
            queue = self._queues.setdefault((key, at), _Queue(flags))
            if queue.flags != flags:
                self.flush()
                queue = self._queues.setdefault((key, at), _Queue(flags))
            ours = {id(parameter) for parameter in optimizer.param_groups[at]["params"]}
            queue.gradients.append({name: gradient for name, gradient in by_id.items() if name in ours})
            queue.hyper.append(hyper)
        self._waiting_bytes += sum(gradient.nbytes for gradient in gradients.values())
        if self._waiting_bytes >= WAITING_BYTES or any(len(q.gradients) >= BLOCK for q in self._queues.values()):
            self.flush()
        return True

    def flush(self) -> None:
        """Apply what is queued. A parameter in two groups or optimizers cannot be here: torch forbids the first, and
        updates of different optimizers commute unless they share parameters, which flushes in between."""
        queues, self._queues, self._waiting_bytes = self._queues, {}, 0
        for (key, at), queue in queues.items():
            optimizer = self._optimizers[key]
            apply(
                optimizer,
                optimizer.param_groups[at]["params"],
                queue.flags,
                queue.gradients,
                queue.hyper,
                self._threads,
            )


def _plan(
    optimizer: Optimizer, group: dict[str, Any], gradients: Mapping[int, torch.Tensor]
) -> tuple[tuple[Any, ...], tuple[float, ...]] | None:
    """Flags that must not change within a block and this step's numbers, or None when there is no rule."""
    kind = type(bare(optimizer))
    if (
        kind not in (SGD, Adam, AdamW)
        or _altered(bare(optimizer))
        or torch.backends.cpu.get_cpu_capability() not in CAPABILITIES
    ):
        return None
    parameters = group["params"]
    dtypes = {parameter.dtype for parameter in parameters}
    if not dtypes <= {torch.float32} and not dtypes <= {torch.float64}:
        return None
    if any(parameter.device.type != "cpu" or not parameter.is_contiguous() for parameter in parameters):
        return None
    if any(
        gradients[id(p)].dtype != p.dtype or gradients[id(p)].shape != p.shape for p in parameters if id(p) in gradients
    ):
        return None
    if not all(_fits(optimizer.state.get(p, {}), p, kind) for p in parameters):
        return None
    if (
        group.get("differentiable")
        or group.get("capturable")
        or any(isinstance(v, torch.Tensor) for v in _numbers(kind, group))
    ):
        return None
    implementation = "fused" if group.get("fused") else "foreach" if group.get("foreach") else "single"
    if kind is not SGD and implementation != "fused" and group["betas"][0] == 0:
        return None  # torch's lerp takes another path there
    flags = (kind, implementation, dtypes == {torch.float64}, *_flags(kind, group))
    try:
        proved = _proved(flags)
    except square_root.UnknownSquareRoot:
        proved = False
    if not proved:
        return None
    return flags, tuple(float(value) for value in _numbers(kind, group))


def _fits(state: Any, parameter: torch.Tensor, kind: type[Optimizer]) -> bool:
    """Whether the state is what the rule will walk; it trusts addresses, and the state may come from a file."""
    if not isinstance(state, dict):
        return False
    for name, held in state.items():
        if name == "step":
            if not isinstance(held, torch.Tensor) or held.numel() != 1 or held.device.type != "cpu":
                return False
        elif isinstance(held, torch.Tensor) and not (
            (held.shape, held.dtype, held.device) == (parameter.shape, parameter.dtype, parameter.device)
            and held.is_contiguous()
        ):
            return False
    return kind is SGD or not state or {"step", "exp_avg", "exp_avg_sq"} <= state.keys()


def _altered(optimizer: Optimizer) -> bool:
    """Whether a step does more than torch's class says: hooks of the user's, or a replaced `step`."""
    hooks = optimizer._optimizer_step_pre_hooks or optimizer._optimizer_step_post_hooks  # noqa: SLF001
    patched = optimizer.__dict__.get("step")
    return bool(hooks) or (patched is not None and not hasattr(patched, "_wrapped_by_lr_sched"))


def _numbers(kind: type[Optimizer], group: dict[str, Any]) -> tuple[Any, ...]:
    if kind is SGD:
        return group["lr"], group["momentum"], group["dampening"], group["weight_decay"]
    return group["lr"], *group["betas"], group["eps"], group["weight_decay"]


def _flags(kind: type[Optimizer], group: dict[str, Any]) -> tuple[Any, ...]:
    if kind is SGD:
        return group["nesterov"], group["maximize"], group["momentum"] != 0
    return group["amsgrad"], group["maximize"], kind is AdamW or bool(group.get("decoupled_weight_decay"))


def apply(
    optimizer: Optimizer, parameters: list[torch.Tensor], flags: tuple[Any, ...],
    gradients: list[dict[int, torch.Tensor]], hyper: list[tuple[float, ...]], threads: int,
) -> None:  # fmt: skip
    """Apply several gradients in order, in one pass over memory."""
    touched = [p for p in parameters if any(id(p) in step for step in gradients)]
    rule: Callable[..., None] = _sgd if flags[0] is SGD else _adam
    rule(optimizer, touched, flags, gradients, hyper, threads)


def _sgd(
    optimizer: Optimizer, parameters: list[torch.Tensor], flags: Any, gradients: Any, hyper: Any, threads: int
) -> None:
    _, implementation, double, nesterov, maximize, momentum = flags
    first: list[list[bool]] = [[] for _ in gradients]
    buffers = []
    for parameter in parameters:
        state = optimizer.state[parameter] if momentum else {}
        fresh = state.get("momentum_buffer") is None
        if momentum:
            if fresh:
                state["momentum_buffer"] = torch.empty_like(
                    parameter, memory_format=torch.preserve_format, requires_grad=False
                )
            buffers.append(state["momentum_buffer"].data_ptr())
        for at, step in enumerate(gradients):
            first[at].append(fresh and id(parameter) in step)
            fresh = fresh and id(parameter) not in step
    native.sgd(
        implementation, [p.data_ptr() for p in parameters], buffers, [p.numel() for p in parameters],
        _pointers(parameters, gradients), first, hyper,
        nesterov=nesterov, maximize=maximize, double=double, threads=threads,
    )  # fmt: skip


def _adam(
    optimizer: Optimizer, parameters: list[torch.Tensor], flags: Any, gradients: Any, hyper: Any, threads: int
) -> None:
    _, implementation, double, amsgrad, maximize, decoupled = flags
    steps: list[list[float]] = [[] for _ in gradients]
    for parameter in parameters:
        state = optimizer.state[parameter]
        if not state:
            state["step"] = torch.tensor(
                0.0, dtype=torch.float64 if torch.get_default_dtype() == torch.float64 else torch.float32
            )
            for name in ("exp_avg", "exp_avg_sq", *(("max_exp_avg_sq",) if amsgrad else ())):
                state[name] = torch.zeros_like(parameter, memory_format=torch.preserve_format, requires_grad=False)
        count = state["step"].item()
        for at, step in enumerate(gradients):
            count += id(parameter) in step
            steps[at].append(count)
        state["step"].fill_(count)
    held = [optimizer.state[parameter] for parameter in parameters]
    root = 0 if implementation == "fused" else square_root.address(torch.float64 if double else torch.float32)
    native.adam(
        implementation, [p.data_ptr() for p in parameters], [s["exp_avg"].data_ptr() for s in held],
        [s["exp_avg_sq"].data_ptr() for s in held], [s["max_exp_avg_sq"].data_ptr() for s in held] if amsgrad else [],
        [p.numel() for p in parameters], _pointers(parameters, gradients), steps, hyper,
        decoupled=decoupled, maximize=maximize, double=double, lr_float32=False, square_root=root, threads=threads,
    )  # fmt: skip


def _pointers(parameters: list[torch.Tensor], gradients: list[dict[int, torch.Tensor]]) -> list[list[int]]:
    return [[step[id(p)].data_ptr() if id(p) in step else 0 for p in parameters] for step in gradients]


@functools.cache
def _proved(flags: tuple[Any, ...]) -> bool:
    """Whether the rule gives torch's bits here, on a few thousand numbers, over several steps."""
    kind, implementation, double, *rest = flags
    if kind is SGD:
        options: dict[str, Any] = {
            "nesterov": rest[0],
            "maximize": rest[1],
            "momentum": 0.9 if rest[2] else 0.0,
            "weight_decay": 1e-2,
        }
        hyper: tuple[float, ...] = (1e-2, options["momentum"], 0.0, 1e-2)
    else:
        options = {"amsgrad": rest[0], "maximize": rest[1], "weight_decay": 1e-2}
        hyper = (1e-2, 0.9, 0.999, 1e-8, 1e-2)
        kind = AdamW if rest[2] else Adam
    options |= {"lr": 1e-2, "foreach": implementation == "foreach", "fused": implementation == "fused"}
    source = torch.Generator().manual_seed(20)
    draws = [
        torch.randn(count, generator=source, dtype=torch.float64 if double else torch.float32) for count in (4099, 61)
    ]
    left: list[torch.Tensor] = [torch.nn.Parameter(draw.clone()) for draw in draws]
    right: list[torch.Tensor] = [torch.nn.Parameter(draw.clone()) for draw in draws]
    ours, theirs = kind(left, **options), kind(right, **options)
    gradients = [[torch.randn(p.shape, generator=source, dtype=p.dtype) for p in left] for _ in range(3)]
    for step in gradients:
        for parameter, gradient in zip(right, step, strict=True):
            parameter.grad = gradient.clone()
        theirs.step()
    with torch.no_grad():
        apply(
            ours,
            left,
            flags,
            [{id(p): g for p, g in zip(left, step, strict=True)} for step in gradients],
            [hyper] * 3,
            1,
        )
    return all(
        torch.equal(one.view(torch.uint8), two.view(torch.uint8))
        for p, q in zip(left, right, strict=True)
        for one, two in zip([p.detach(), *_moving(ours, p)], [q.detach(), *_moving(theirs, q)], strict=True)
    )


def _moving(optimizer: Optimizer, parameter: torch.Tensor) -> list[torch.Tensor]:
    state = optimizer.state[parameter]
    names = ("momentum_buffer", "exp_avg", "exp_avg_sq", "max_exp_avg_sq")
    return [state[name] for name in names if isinstance(state.get(name), torch.Tensor)]
