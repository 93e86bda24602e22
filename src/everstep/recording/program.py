"""What is trained, and its names as they are now."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from everstep.capture.context import Context
from everstep.capture.roster import Model, Optimizers, Roster, call_the_roll, elementwise
from everstep.capture.shards import is_sharded, local
from everstep.errors import Misdescribed, Unsupported
from everstep.layout.replicas import mine
from everstep.layout.spec import Spec, agreed
from everstep.types import Local


@dataclass(slots=True)
class Program:
    model: Model
    optimizer: Optimizers
    roster: Roster
    context: Context
    replica: tuple[int, int] = (0, 1)
    """Which of the ranks that hold the same this one is, and how many they are."""
    cohort: tuple[int, int] = (0, 1)
    """In which it trains, by number, and of how many writers; a run of one writer has none."""
    _owned: tuple[Roster, frozenset[str] | None] | None = None

    @property
    def owned(self) -> frozenset[str] | None:
        """The parameters whose bytes go to the disk from here; None for all. Only optimizers that treat each parameter
        by itself, and as the only one, can be replayed without the others."""
        at, count = self.replica
        if count == 1 or not self.per_parameter:
            return None
        if self._owned is None or self._owned[0] is not self.roster:
            sizes = {name: local(parameter).nbytes for name, parameter in self.roster.parameters.items()}
            stepped = [[name for group in groups for name in group] for _, groups in self.roster.groups()]
            twice = len({name for names in stepped for name in names}) < sum(map(len, stepped))
            self._owned = self.roster, None if twice else mine(sizes, stepped, at, count)
        return self._owned[1]

    def arrived(self, *, restored: bool) -> None:
        """At the step from which training goes on; optimizers and modules may hold other tensors than before."""
        if restored:
            self.roster.settle()
        self.roster = call_the_roll(self.model, self.optimizer, self.roster.layout)

    def call_the_roll(self) -> Roster:
        """Name everything anew: parameters were added or replaced. What a spec describes must stay."""
        layout = self.roster.layout
        self.roster = call_the_roll(self.model, self.optimizer, layout)
        described = layout.keys() - self.roster.bucketed()
        if described and described != plain(self.roster).keys():
            raise Misdescribed("parameters were added or removed, and the run's spec does not describe them.")
        self.context = Context(self.roster, self.context.state)
        return self.roster

    @property
    def per_parameter(self) -> bool:
        """Whether every optimizer is known to treat each element by itself: then a state of parts of several steps can
        be repaired, and ranks can be replayed without each other."""
        return all(map(elementwise, self.roster.optimizers.values()))

    @property
    def scaled(self) -> bool:
        """Whether something in `state=` may hold its optimizer back, as a GradScaler does: then a step without an
        update is right."""
        return any(
            isinstance(item, torch.amp.GradScaler) or getattr(item, "skips", False)
            for item in self.context.state.values()
        )


def plain(roster: Roster) -> dict[str, torch.Tensor]:
    """The parameters that do not say themselves which parts of what they are."""
    known = roster.bucketed()
    return {name: held for name, held in roster.parameters.items() if not is_sharded(held) and name not in known}


def laid_out(spec: Spec | Mapping[str, Local], roster: Roster, rank: int, world: int) -> dict[str, Local]:
    """Which parts of which logical tensors the program's plain tensors are; DTensors say that of themselves."""
    tensors = plain(roster)
    shapes = {name: tuple(held.shape) for name, held in tensors.items()}
    found = spec.held(shapes, rank, world) if isinstance(spec, Spec) else agreed(spec, shapes)
    for name, held in found.items():
        if held.versions and not tensors[name].is_floating_point():
            raise Unsupported(f"{name}: {tensors[name].dtype} values of ranks (Partial) cannot become one.")
        if not tensors[name].is_contiguous():
            raise Unsupported(f"{name}: a tensor that a spec describes must be contiguous. Make it so before open().")
    return found
