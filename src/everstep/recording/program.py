"""What is trained, and its names as they are now."""

from dataclasses import dataclass

import torch

from everstep.capture.context import Context
from everstep.capture.roster import Model, Optimizers, Roster, call_the_roll

PER_PARAMETER = frozenset({
    "SGD", "Adam", "AdamW", "RMSprop", "Adagrad", "Adadelta", "Adamax", "NAdam", "RAdam", "ASGD", "Rprop",
})  # fmt: skip
"""Optimizers of torch that treat each parameter by itself: a state of parts of several steps can be repaired."""


@dataclass(slots=True)
class Program:
    model: Model
    optimizer: Optimizers
    roster: Roster
    context: Context

    def call_the_roll(self) -> None:
        """Name everything anew: parameters were added or replaced."""
        self.roster = call_the_roll(self.model, self.optimizer)
        self.context = Context(self.roster, self.context.state)

    @property
    def per_parameter(self) -> bool:
        """Whether every optimizer is known to treat each parameter by itself."""
        return all(
            type(optimizer).__module__.startswith("torch.optim.") and type(optimizer).__name__ in PER_PARAMETER
            for optimizer in self.roster.optimizers.values()
        )

    @property
    def scaled(self) -> bool:
        """Whether a GradScaler in `state=` may hold its optimizer back: then a step without an update is right."""
        return any(isinstance(item, torch.amp.GradScaler) for item in self.context.state.values())
