"""Applies records to a state, in strict order, by native rules where they are proved equal, else by the optimizer
itself.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from everstep.capture import rng
from everstep.capture.digests import digest
from everstep.capture.roster import Roster
from everstep.capture.shards import like, local
from everstep.capture.snapshot import optimizer_tensors
from everstep.capture.tensors import view
from everstep.codec import body, tree
from everstep.errors import Mismatch, ReplayDiffers
from everstep.log.reader import Located
from everstep.recover.ahead import bodies
from everstep.recover.ferry import Ferry
from everstep.recover.pages import Pages
from everstep.recover.place import place_groups
from everstep.shadow.rules import Rules
from everstep.store.base import parameters_digest, state_digest
from everstep.store.disk import Files
from everstep.types import Pair, Tensor

Folded = dict[str, tuple[Any, Mapping[str, torch.Tensor], int]]
"""The newest value of each context item: its tree, the tensors it names, the step that said it."""


@dataclass(frozen=True, slots=True)
class Cut:
    """Where a state is parts of a writer's: of which of its parameters which, and who is told of the digests of all of
    it. Nothing is compared then."""

    slices: Mapping[str, tuple[slice, ...]]
    noted: Callable[[int, str, str | None], None]


class Replay:
    """The state of `roster` moves forward one record at a time."""

    def __init__(
        self, roster: Roster, rules: Rules | None, ferry: Ferry, *, to_the_end: bool = False, cut: Cut | None = None
    ) -> None:
        """`to_the_end`: a digest that differs is told after the last record, because others wait for each step."""
        self._roster, self._cut = roster, cut
        self._to_the_end, self._differs = to_the_end, ""
        self._ferry = ferry
        self._rules = rules
        self.natively = 0
        """Updates applied by native rules."""
        self.by_torch = 0
        """Updates applied by calling the optimizer."""
        self.proved = -1
        """The newest step whose digest was compared, and found equal."""
        self.digests: dict[str, Pair] = {}
        """Of the tensors that were compared then; empty once they have changed."""

    def repair(self, step: int, record: body.Body, versions: Mapping[str, int]) -> None:
        """Bring to `step` what is older than it, and nothing else. Only for optimizers that treat each parameter by
        itself; a digest decides in the end."""
        for at, update in enumerate(record.head.updates):
            self._update(at, update, record, {name for name, version in versions.items() if version < step})
        self._settle()
        self._end_groups(record)

    def run(self, records: Iterable[tuple[int, body.Body]], folded: Folded) -> None:
        """Apply the records; check every digest they carry where it is cheap, and the last one always."""
        last: tuple[int, body.Body] | None = None
        for step, record in records:
            if record.head.before is not None:
                self._prove(step - 1, *record.head.before)
            self.digests = {}
            for at, update in enumerate(record.head.updates):
                self._update(at, update, record)
            self._end_groups(record)
            if record.head.context:
                small = blobs(record)
                folded.update((name, (item, small, step)) for name, item in record.head.context.items())
            if record.head.state is not None:
                self._prove(step, record.head.parameters, record.head.state)
            last = (step, record)
        if last is not None and last[1].head.state is None and last[1].head.parameters:
            self._prove(last[0], last[1].head.parameters, None)
        self._settle()
        if self._differs:
            raise ReplayDiffers(self._differs)

    def _update(self, at: int, update: body.Update, record: body.Body, only: set[str] | None = None) -> None:
        optimizer = self._optimizer(update.optimizer)
        if update.groups is not None:
            place_groups(tree.decode(update.groups, blobs(record).__getitem__), optimizer)
        if update.skipped:
            return
        prefix = f"gradient/{at}/"
        gradients = {
            name: self._consumed(name, view(memory, tensor))
            for name, (tensor, memory) in _under(prefix, record)
            if (only is None or name in only) and (self._cut is None or name in self._cut.slices)
        }
        for name, gradient in gradients.items():  # kernels trust sizes: a file is not believed
            held = self._roster.parameters.get(name)
            if held is None or local(held).shape != gradient.shape:
                ours = "none" if held is None else tuple(local(held).shape)
                raise Mismatch(
                    f"a record has a gradient of shape {tuple(gradient.shape)} for parameter {name!r}; ours has {ours}."
                )
        if (
            self._rules is not None
            and update.scale is None
            and update.rng is None
            and self._rules.take(update.optimizer, gradients)
        ):
            self.natively += 1
            return
        self._settle()
        self._step(optimizer, update, gradients, record)
        self.by_torch += 1

    def _end_groups(self, record: body.Body) -> None:
        """Hyper-parameters as the step left them."""
        for key, groups in record.head.groups.items():
            place_groups(tree.decode(groups, blobs(record).__getitem__), self._optimizer(key))

    def _consumed(self, name: str, gradient: torch.Tensor) -> torch.Tensor:
        """A gradient, or our part of it, as the optimizer consumed it: it may have been rounded before."""
        gradient = gradient if self._cut is None else gradient[self._cut.slices[name]].contiguous()
        held = self._roster.parameters.get(name)
        if held is None or gradient.dtype is not torch.bfloat16 or held.dtype is not torch.float32:
            return gradient
        return gradient.to(torch.float32)

    def _optimizer(self, key: str) -> torch.optim.Optimizer:
        if key not in self._roster.optimizers:
            raise Mismatch(f"a record is of optimizer {key!r}; we have {sorted(self._roster.optimizers)}.")
        return self._roster.optimizers[key]

    def _step(
        self,
        optimizer: torch.optim.Optimizer,
        update: body.Update,
        gradients: dict[str, torch.Tensor],
        record: body.Body,
    ) -> None:
        """Call the optimizer as the training loop did."""
        ours = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        for parameter in ours:
            parameter.grad = None
        for name, gradient in gradients.items():
            parameter = self._roster.parameters[name]
            room = torch.empty_like(local(parameter), dtype=gradient.dtype, requires_grad=False)
            parameter.grad = like(parameter, self._ferry.bring(room, gradient))
        if update.rng is not None:
            rng.put(tree.decode(update.rng, blobs(record).__getitem__))
        if update.scale is not None and ours:
            device = ours[0].device
            optimizer.grad_scale = torch.tensor(update.scale, device=device)  # type: ignore[attr-defined]
            optimizer.found_inf = torch.zeros((), device=device)  # type: ignore[attr-defined]
        try:
            optimizer.step()
        finally:
            for name in ("grad_scale", "found_inf"):
                if update.scale is not None and hasattr(optimizer, name):
                    delattr(optimizer, name)
            for parameter in ours:
                parameter.grad = None

    def _settle(self) -> None:
        if self._rules is not None:
            self._rules.flush()

    def _prove(self, step: int, parameters: str, state: str | None) -> None:
        """Raise unless the state has the digests that the trainer's had."""
        self._settle()
        if self._cut is not None:
            self._cut.noted(step, parameters, state)
            return
        tensors = {f"model/{name}": parameter for name, parameter in self._roster.parameters.items()}
        if state is not None:
            tensors |= optimizer_tensors(self._roster)
        pairs = dict(zip(tensors, digest(list(tensors.values())), strict=True))
        found = parameters_digest(pairs)
        if found != parameters or (state is not None and state_digest(pairs) != state):
            what = "optimizer state" if found == parameters else "parameters"
            self._differs = self._differs or f"step {step}: replay gives other {what} than the trainer had."
            if not self._to_the_end:
                raise ReplayDiffers(self._differs)
        self.proved, self.digests = step, pairs


def read(disk: Files, records: Iterable[Located], pages: Pages | None = None) -> Iterator[tuple[Located, body.Body]]:
    """The records' bodies, checked, one after the other."""
    for located, data in bodies(disk, list(records), pages):
        yield located, body.parse(data, name=f"record of step {located.step} in {located.path}")


def _under(prefix: str, record: body.Body) -> Iterator[tuple[str, tuple[Tensor, memoryview]]]:
    for name, held in record.blobs.items():
        if name.startswith(prefix):
            yield name.removeprefix(prefix), held


def blobs(record: body.Body) -> Mapping[str, torch.Tensor]:
    """The small tensors of a record, copied: a view would keep the gradients' memory."""
    return {
        name: view(memory, tensor).clone()
        for name, (tensor, memory) in record.blobs.items()
        if not name.startswith("gradient/")
    }
