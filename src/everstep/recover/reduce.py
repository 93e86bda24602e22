"""One value out of the versions that ranks of the run held: the mean, the sum, or the first of them.

Versions are added up in their order, in double precision, so that every rank comes to the same bits. Besides the
program's own tensor there is one version of it in memory, and the sum.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import torch

from everstep.capture.shards import like, local
from everstep.layout import boxes
from everstep.layout.versions import apart, fitted
from everstep.recover.parts import view
from everstep.recover.placed import Brought, around
from everstep.recover.wanted import Wanted
from everstep.recover.writers import Writers
from everstep.store.base import Index
from everstep.types import Local


@dataclass(slots=True)
class Reduction:
    """`each` is a parameter of no model, where one version after the other is put."""

    want: Wanted
    each: Wanted
    _sums: dict[int, torch.Tensor] = field(default_factory=dict)

    @staticmethod
    def of(want: Wanted, fitted: Local) -> "Reduction":
        own = local(want.parameter)
        room = torch.nn.Parameter(torch.empty_like(own, requires_grad=False), requires_grad=False)
        return Reduction(want, Wanted(want.name, room, fitted, [piece.box for piece in fitted.pieces]))

    def add(self, brought: Brought) -> None:
        """What has just been put there, of one writer."""
        target, held = brought.target, brought.ours
        total = self._sums.get(target.data_ptr())
        if total is None:
            total = self._sums[target.data_ptr()] = torch.zeros_like(target, dtype=torch.float64)
        for box in brought.boxes:
            piece = around(box, held)
            where = boxes.slices(box, piece.box)
            view(total, held, piece)[where].add_(view(target, held, piece)[where])

    def finish(self, optimizers: Iterable[torch.optim.Optimizer]) -> Wanted:
        """Parameter and optimizer state of the program; what is one number is the first version's."""
        how, count = self.each.held.versions[0], self.each.held.logical_shape[0]
        parts = float(count) if how == "mean" else 1.0
        with torch.no_grad():
            if self.each.held.pieces:
                local(self.want.parameter).copy_(self._sums[self.each.parameter.data_ptr()] / parts)
            for optimizer in optimizers:
                held = optimizer.state.pop(self.each.parameter, {})
                for state, value in held.items():
                    if isinstance(value, torch.Tensor) and value.data_ptr() in self._sums:
                        value.copy_(self._sums[value.data_ptr()] / parts)
                        held[state] = like(self.want.parameter, value)
                if held:
                    optimizer.state[self.want.parameter] = held
        self.want.origins = [f"{how} of {count} versions: {'; '.join(self.each.origins)}"]
        self.want.absent = []
        return self.want


def fit(wanted: dict[str, Wanted], writers: Writers, asked: Sequence[int]) -> list[Reduction]:
    """Say of what is wanted how it is to be read, if ranks held, or hold, values of their own. Those reductions are
    wanted instead of the program's tensors."""
    names = {want.held.logical for want in wanted.values()}
    theirs: dict[str, Local] = {}
    for at in asked if writers.index(asked[0]).content.layout else ():  # such a run had a spec
        if not names:
            break
        held = writers.index(at).held.values()
        theirs |= apart(one for one in held if one.logical in names)
        names -= {one.logical for one in held}
    found = []
    for name, want in wanted.items():
        held_there = fitted(want.held, theirs.get(want.held.logical))
        if held_there.versions and held_there is not want.held:
            found.append(Reduction.of(want, held_there))
            wanted[name] = found[-1].each
        elif held_there is not want.held:
            wanted[name] = Wanted(name, want.parameter, held_there, [piece.box for piece in held_there.pieces])
    return found


def in_order(used: Sequence[int], indexes: Sequence[Index], reductions: Iterable[Reduction]) -> list[int]:
    """The writers in the order of the versions that they hold."""
    reduced = {reduction.each.held.logical for reduction in reductions}
    version = {
        at: min((piece.box.low[0] for held in index.held.values() if held.logical in reduced for piece in held.pieces),
                default=0)
        for at, index in zip(used, indexes, strict=True)
    }  # fmt: skip
    return sorted(used, key=version.__getitem__) if reduced else list(used)


def one_of(versions: torch.Tensor, how: str) -> torch.Tensor:
    """The same of all versions at once."""
    if how == "first":
        return versions[0].clone()
    total = torch.zeros(versions.shape[1:], dtype=torch.float64)
    for version in versions:
        total.add_(version)
    return (total / (len(versions) if how == "mean" else 1)).to(versions.dtype)
