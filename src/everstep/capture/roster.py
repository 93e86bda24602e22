"""The names of everything a run records: parameters, buffers, optimizers. Names, never positions."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from everstep.capture.buckets import Buckets, bare
from everstep.errors import Misuse, Unsupported
from everstep.types import Local

Model = nn.Module | Mapping[str, nn.Module]
Optimizers = torch.optim.Optimizer | Sequence[torch.optim.Optimizer] | Mapping[str, torch.optim.Optimizer]

ELEMENTWISE = frozenset({
    "SGD", "Adam", "AdamW", "RMSprop", "Adagrad", "Adadelta", "Adamax", "NAdam", "RAdam", "ASGD", "Rprop",
})  # fmt: skip
"""Optimizers of torch that treat each element by itself: any part of a parameter can be replayed without the rest."""


@dataclass(slots=True)
class Roster:
    """What a training program holds, by name. `aliases` maps the further names of tied parameters to the first."""

    parameters: dict[str, torch.Tensor]
    aliases: dict[str, str]
    modules: dict[str, nn.Module]
    optimizers: dict[str, torch.optim.Optimizer]
    layout: Mapping[str, Local] = field(default_factory=dict)
    """Of parameters that a spec describes, or that lie in buckets: which parts of which logical tensors they are."""

    def logical(self, name: str) -> str:
        """The tensor of which a parameter is a part; itself, unless a spec says otherwise."""
        return self.layout[name].logical if name in self.layout else name

    def bucketed(self) -> frozenset[str]:
        """The parameters that lie in an optimizer's buckets: it says itself what they are."""
        return frozenset(name for buckets in _bucketing(self.optimizers) for name in buckets.parameters)

    def settle(self) -> None:
        """What was restored is where the optimizers that keep buckets look for it."""
        for buckets in _bucketing(self.optimizers):
            buckets.settle()

    def name_of(self) -> dict[int, str]:
        return {id(parameter): name for name, parameter in self.parameters.items()}

    def buffers(self) -> dict[str, torch.Tensor]:
        """The buffers as they are now; modules may replace them."""
        return {
            f"{prefix}{name}": buffer
            for prefix, module in self.modules.items()
            for name, buffer in module._buffers.items()  # noqa: SLF001 named_buffers() walks the whole model at each call
            if buffer is not None
        }

    def derived(self) -> tuple[str, ...]:
        """The buffers that the model does not keep in its own state_dict and can rebuild."""
        return tuple(
            f"{prefix}{name}" for prefix, module in self.modules.items() for name in module._non_persistent_buffers_set  # noqa: SLF001
            if module._buffers.get(name) is not None  # noqa: SLF001
        )  # fmt: skip

    def kept(self) -> list[tuple[str, str, torch.Size, torch.dtype]]:
        """What the buffers in the model's state_dict are like: a program that resumes must have the same."""
        return [
            (prefix, name, buffer.shape, buffer.dtype)
            for prefix, module in self.modules.items()
            for name, buffer in module._buffers.items()  # noqa: SLF001
            if buffer is not None and name not in module._non_persistent_buffers_set  # noqa: SLF001
        ]

    def extra(self) -> dict[str, nn.Module]:
        """The modules that keep a state of their own besides tensors."""
        return {
            prefix: module for prefix, module in self.modules.items()
            if type(module).get_extra_state is not nn.Module.get_extra_state
        }  # fmt: skip

    def groups(self) -> list[tuple[str, list[list[str]]]]:
        """Per optimizer, the names in each param group."""
        names = self.name_of()
        return [
            (
                key,
                [
                    [_named(names, parameter, key, at) for parameter in group["params"]]
                    for at, group in enumerate(opt.param_groups)
                ],
            )
            for key, opt in self.optimizers.items()
        ]

    def shape(self) -> tuple[Any, ...]:
        """What must stay the same for a record to make sense: identity of every parameter in every group."""
        return tuple(
            (key, tuple(tuple(id(parameter) for parameter in group["params"]) for group in opt.param_groups))
            for key, opt in self.optimizers.items()
        )


def call_the_roll(model: Model, optimizer: Optimizers, layout: Mapping[str, Local] | None = None) -> Roster:
    """Name everything; an error names what has no name."""
    modules = dict(_modules(model))
    parameters, aliases = _named_parameters(modules)
    optimizers, described = dict(_optimizers(optimizer)), dict(layout or {})
    for buckets in _bucketing(optimizers):
        for name in buckets.names:  # what the model has under that name is made of what lies in the buckets
            parameters.pop(name, None)
        parameters |= buckets.parameters
        described |= buckets.layout
        aliases = {name: held for name, held in aliases.items() if held in parameters}
    roster = Roster(parameters, aliases, modules, optimizers, described)
    roster.groups()
    return roster


def named_parameters(model: Model) -> dict[str, torch.Tensor]:
    """Every parameter by the name that a run has for it; of tied names the first."""
    return _named_parameters(dict(_modules(model)))[0]


def _named_parameters(modules: Mapping[str, nn.Module]) -> tuple[dict[str, torch.Tensor], dict[str, str]]:
    """Parameters by name, and the further names of those that are tied."""
    parameters: dict[str, torch.Tensor] = {}
    aliases: dict[str, str] = {}
    first: dict[int, str] = {}
    for prefix, module in modules.items():
        for name, parameter in module._parameters.items():  # noqa: SLF001 per module, so that tied names are seen too
            if parameter is None:
                continue
            full = f"{prefix}{name}"
            if isinstance(parameter, nn.parameter.UninitializedParameter):
                raise Misuse(f"parameter {full!r} has no shape yet. Run one forward pass before everstep.open().")
            if id(parameter) in first:
                aliases[full] = first[id(parameter)]
            else:
                first[id(parameter)] = full
                parameters[full] = parameter
    return parameters, aliases


def _bucketing(optimizers: Mapping[str, torch.optim.Optimizer]) -> list[Buckets]:
    return [optimizer for optimizer in optimizers.values() if isinstance(optimizer, Buckets)]


def _modules(model: Model) -> Iterable[tuple[str, nn.Module]]:
    parts = {"": model} if isinstance(model, nn.Module) else {f"{key}.": part for key, part in model.items()}
    for prefix, part in parts.items():
        if not isinstance(part, nn.Module):
            raise Misuse(
                f"model must be a torch.nn.Module or a mapping of names to modules, not {type(part).__name__}."
            )
        seen: set[int] = set()
        for name, module in _bare(part).named_modules(remove_duplicate=False):
            if id(module) not in seen or module._parameters:  # noqa: SLF001 a shared module's parameters have several names
                seen.add(id(module))
                yield (f"{prefix}{name}." if name else prefix), module


def _bare(module: nn.Module) -> nn.Module:
    """The user's own module under torch.compile and data-parallel wrappers, so that names do not depend on them."""
    while True:
        inner = getattr(module, "_orig_mod", None)
        if inner is None and type(module).__name__ in ("DistributedDataParallel", "DataParallel"):
            inner = getattr(module, "module", None)
        if not isinstance(inner, nn.Module):
            return module
        module = inner


def _optimizers(optimizer: Optimizers) -> Iterable[tuple[str, torch.optim.Optimizer]]:
    if isinstance(optimizer, torch.optim.Optimizer):
        parts: list[tuple[str, Any]] = [("main", optimizer)]
    elif isinstance(optimizer, Mapping):
        parts = [(str(key), part) for key, part in optimizer.items()]
    else:
        parts = [(str(at), part) for at, part in enumerate(optimizer)]
    for key, part in parts:
        if not isinstance(part, torch.optim.Optimizer):
            raise Misuse(f"optimizer {key!r} must be a torch.optim.Optimizer, not {type(part).__name__}.")
        if "/" in key:
            raise Misuse(f"optimizer {key!r}: a name may not contain '/'.")
        if not isinstance(part, Buckets):
            _refuse_hidden_state(key, part, [other for _, other in parts])
    return parts


def _refuse_hidden_state(key: str, optimizer: torch.optim.Optimizer, known: Sequence[torch.optim.Optimizer]) -> None:
    """An optimizer around another one has that one's state nowhere that a base would find it."""
    for name, inner in vars(optimizer).items():
        if not isinstance(inner, torch.optim.Optimizer) or inner.state is optimizer.state or inner in known:
            continue
        what = f"optimizer {key!r} ({type(optimizer).__name__}) steps by another one, .{name} ({type(inner).__name__})"
        if type(optimizer).__name__ == "ZeroRedundancyOptimizer":
            raise Unsupported(
                f"{what}, which holds a part of the state. Pass everstep.integrations.zero_redundancy.seen(model, "
                "optimizer) instead."
            )
        raise Unsupported(
            f"{what}, whose state would not be recorded. Pass both: optimizer={{'outer': o, 'inner': o.{name}}}."
        )


def _named(names: dict[int, str], parameter: torch.Tensor, key: str, group: int) -> str:
    if id(parameter) not in names:
        raise Unsupported(
            f"optimizer {key!r}, group {group}: a parameter of shape {tuple(parameter.shape)} is not in the model. "
            "Pass every module that is trained: model={'net': net, 'loss': loss}."
        )
    return names[id(parameter)]


def kind_of(optimizer: torch.optim.Optimizer) -> str:
    """The name of its class, as a base has it."""
    kind = type(bare(optimizer))
    return f"{kind.__module__}.{kind.__qualname__}"


def elementwise(optimizer: torch.optim.Optimizer) -> bool:
    """Whether an optimizer is known to be one of these; a class derived from one is not."""
    kind = type(bare(optimizer))
    return kind.__module__.startswith("torch.optim.") and kind.__name__ in ELEMENTWISE
