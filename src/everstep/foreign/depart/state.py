"""What is exported: a state in whole tensors by name, put together by whoever restored it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from everstep.capture.tensors import on_host

Values = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Group:
    """A param group: its parameters' names in order, and its hyper-parameters."""

    parameters: tuple[str, ...]
    hyper: Values


@dataclass(frozen=True, slots=True)
class Optimizer:
    """An optimizer's state by parameter and state; `kind` is torch's class, dotted."""

    kind: str
    groups: Sequence[Group]
    state: Mapping[str, Values]


@dataclass(frozen=True, slots=True)
class State:
    """A run at a step. `buffers` are those that a state dict keeps; `extra` are modules' own states by prefix."""

    step: int
    parameters: Mapping[str, torch.Tensor]
    buffers: Mapping[str, torch.Tensor] = field(default_factory=dict)
    aliases: Mapping[str, str] = field(default_factory=dict)
    extra: Values = field(default_factory=dict)
    optimizers: Mapping[str, Optimizer] = field(default_factory=dict)
    state: Values = field(default_factory=dict)

    @property
    def model(self) -> dict[str, torch.Tensor]:
        """The tensors of the model's state dict, without the further names of tied ones."""
        return {**self.parameters, **self.buffers}

    @property
    def frozen(self) -> list[str]:
        """The parameters that no optimizer steps."""
        stepped = {name for one in self.optimizers.values() for group in one.groups for name in group.parameters}
        return [name for name in self.parameters if name not in stepped]


@dataclass(frozen=True, slots=True)
class Departed:
    """What was written. `notes` says what the format does not carry, or its own loader does not restore."""

    path: str
    tensors: int
    nbytes: int
    notes: tuple[str, ...]


def expected(state: State, *, aliases: bool, optimizer: bool) -> dict[str, torch.Tensor]:
    """Every tensor that a reader must find, under the names of `foreign.found`."""
    found = {f"model/{name}": tensor for name, tensor in state.model.items()}
    if aliases:
        found |= {f"model/{alias}": state.parameters[name] for alias, name in state.aliases.items()}
    for at, one in enumerate(state.optimizers.values() if optimizer else ()):
        prefix = "optimizer" if not at else f"optimizer.{at}"
        for name, states in one.state.items():
            found |= {f"{prefix}/{key}/{name}": held for key, held in states.items() if isinstance(held, torch.Tensor)}
    return {name: on_host(tensor) for name, tensor in found.items()}
