"""The one moment in a step when gradients are final: just before the optimizer consumes them.

Before each optimizer step the gradients are copied and the hyper-parameters noted; after it the parameters' digest is
taken. If the digest before the next step is another one, someone changed the parameters in between: replay would go
wrong, so that step is kept as a base instead.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec
import torch

from everstep.capture import rng
from everstep.capture.context import encode
from everstep.capture.digests import Watch
from everstep.capture.layers import Layers, Layout
from everstep.capture.marks import Marks
from everstep.capture.mover import Mover, offsets, round_off
from everstep.capture.roster import Roster
from everstep.capture.shards import local
from everstep.capture.tensors import describe
from everstep.codec.body import Update
from everstep.ring.pen import Extent
from everstep.types import Pair, Tensor
from everstep.uncollected import uncollected

BUFFER_FULL = "the buffer was full"
LAYOUTS_MAX = 64


@dataclass(slots=True)
class Captured:
    """One optimizer step: what the record says of it, its gradients in the ring, and the small rest."""

    update: Update
    gradients: list[Tensor]
    extent: Extent | None
    small: list[tuple[Tensor, bytes]]
    rng: dict[str, Any]


class Hooks:
    """Watches the optimizers of a run from `resume` to `close`."""

    def __init__(
        self, roster: Roster, mover: Mover, take: Callable[[int], Extent | None], *, captures: bool, rounds: bool,
        by_layer: bool, about_to_step: Callable[[], None],
    ) -> None:  # fmt: skip
        self._roster = roster
        self._mover = mover
        self._room = take
        self.captures = captures
        """Whether gradients are copied."""
        self._rounds = rounds
        self._about_to_step = about_to_step
        self._watch = Watch(list(roster.parameters.values()))
        self._names = roster.name_of()
        self._shape, self._kept = roster.shape(), roster.kept()
        self._hyper: dict[str, bytes] = {}
        self._layouts: dict[tuple[Any, ...], Layout] = {}
        self._by_layer = by_layer
        self._layers = self._sending()
        self._open: Captured | None = None
        self._marks = Marks()
        self._states: list[Pair] = []
        self.digests: list[Pair] = []
        """Of the parameters, in the roster's order, after the last optimizer step; marks only, if not `exact`."""
        self.updates: list[Captured] = []
        """The optimizer steps since the last commit."""
        self.why_base: str | None = None
        """Why the step being taken cannot be replayed from the one before it; None if it can."""
        self.watching = False
        self._handles = []
        for key, optimizer in roster.optimizers.items():
            self._handles.append(optimizer.register_step_pre_hook(self._bind(key, self._before)))
            self._handles.append(optimizer.register_step_post_hook(self._bind(key, self._after)))

    @property
    def exact(self) -> bool:
        """Whether `digests` are digests."""
        return self._watch.exact

    def start(self) -> None:
        """Watch from now on; the state as it is now is the one the next record follows from."""
        self.reset()
        self._look()
        self.watching = True

    def reset(self) -> None:
        """Forget the step being taken: it is committed, or given up."""
        if self._layers is not None:
            self._layers.forget()
        self.updates, self._open, self.why_base = [], None, None

    def handed_over(self) -> list[Captured]:
        """The updates of the step; their memory belongs to the caller from now on."""
        updates, self.updates = self.updates, []
        return updates

    def rename(self, roster: Roster) -> None:
        """Go on with another roster: parameters were added or replaced."""
        self._roster, self._names = roster, roster.name_of()
        self._shape, self._kept = roster.shape(), roster.kept()
        self._watch = Watch(list(roster.parameters.values()))
        self._layouts.clear()
        if self._layers is not None:
            self._layers.forget()
            self._layers.remove()
        self._layers = self._sending()
        self._look()

    def final_groups(self) -> tuple[dict[str, list[Any]], list[tuple[Tensor, bytes]]]:
        """Hyper-parameters as they are now, of the optimizers where the log says otherwise."""
        said: dict[str, list[Any]] = {}
        blobs: list[tuple[Tensor, bytes]] = []
        for key, optimizer in self._roster.optimizers.items():
            groups, more = self._groups(key, optimizer, f"hyper/end/{key}")
            if groups is not None:
                said[key] = groups
                blobs += more
        return said, blobs

    def say_all(self) -> None:
        """Write all hyper-parameters again with the next record."""
        self._hyper.clear()

    def check(self) -> None:
        """Notice what was changed since the last look, behind the optimizer's back, and what resuming would refuse."""
        self._check()
        if self._roster.kept() != self._kept:
            self._break("a buffer was added, removed or resized")

    def _check(self) -> None:
        if self._open is not None:
            self._break("an optimizer step did not finish")
        if self.why_base is not None:
            return
        if self._roster.shape() != self._shape:
            self._break("the param groups changed")
        elif self._watch.look() != self.digests:
            self._break("parameters were changed outside the optimizer")
        elif self._states != self._look_at_states():
            self._break("optimizer state was changed outside the optimizer")

    def remove(self) -> None:
        self.watching = False
        self._about_to_step = lambda: None
        self._room = lambda _nbytes: None  # it belongs to the run: no cycle keeps the user's loaders alive
        for handle in self._handles:
            handle.remove()
        if self._layers is not None:
            self._layers.remove()

    def _sending(self) -> Layers | None:
        if not self._by_layer:
            return None
        room = lambda nbytes: self._room(nbytes) if self.watching and self.why_base is None else None  # noqa: E731
        return Layers(list(self._roster.parameters.values()), self._mover, room, self._break)

    def _bind(self, key: str, hook: Callable[[str, torch.optim.Optimizer, Any, Any], None]) -> Callable[..., None]:
        return lambda optimizer, args, kwargs: hook(key, optimizer, args, kwargs)

    @uncollected()
    def _before(self, key: str, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        if not self.watching:
            return
        self._check()
        self._about_to_step()
        if args[1:] or {name for name, value in kwargs.items() if value is not None}:
            self._break("the optimizer was called with a closure")
        try:
            self._open = self._take(key, optimizer)
        except Exception as failed:  # noqa: BLE001 training must go on; a base may still hold the step
            self._break(f"its gradients could not be captured ({type(failed).__name__}: {failed})")
        if self._rounds and (self._open is None or (self._open.extent is None and not self._open.update.skipped)):
            self._round_off(optimizer)

    @uncollected()
    def _after(self, _key: str, _optimizer: torch.optim.Optimizer, _args: Any, _kwargs: Any) -> None:
        if not self.watching:
            return
        self._look()
        taken, self._open = self._open, None
        if taken is None:
            return
        now = rng.take()
        if not all(rng.same(name, state, now.get(name)) for name, state in taken.rng.items()):
            encoded = encode(f"rng/{len(self.updates)}", {name: rng.packed(name, s) for name, s in taken.rng.items()})
            taken.update = msgspec.structs.replace(taken.update, rng=encoded.tree)
            taken.small += encoded.blobs
        self.updates.append(taken)

    def _round_off(self, optimizer: torch.optim.Optimizer) -> None:
        """Gradients that are not captured are rounded all the same: what is trained must not depend on how much room
        there was, and replicas must all consume the like."""
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                gradient = parameter.grad
                if gradient is not None and gradient.dtype is torch.float32 and gradient.layout is torch.strided:
                    round_off(local(gradient))

    def _take(self, key: str, optimizer: torch.optim.Optimizer) -> Captured:
        """Copy what the optimizer is about to consume."""
        at = len(self.updates)
        states = rng.take()
        scale, found = getattr(optimizer, "grad_scale", None), getattr(optimizer, "found_inf", None)
        skipped = found is not None and bool(found.item())
        groups, hyper = self._groups(key, optimizer, f"hyper/{at}")
        update = Update(key, groups, None if scale is None else float(scale.item()), skipped)
        if skipped or self.why_base is not None or not self.captures:
            return Captured(update, [], None, hyper, states)
        trained = [
            parameter for group in optimizer.param_groups for parameter in group["params"] if parameter.grad is not None
        ]
        named = [(self._names[id(parameter)], parameter.grad) for parameter in trained]
        if any(gradient.layout is not torch.strided for _, gradient in named):
            self._break("a gradient is sparse")
            return Captured(update, [], None, [], states)
        tensors = [local(gradient) for _, gradient in named]
        layout = self._layout(at, named)
        extent, sent = self._layers.arrived(key, layout, tensors) if self._layers is not None else (None, set())
        extent = extent or self._room(layout.nbytes)
        if extent is None:
            self._break(BUFFER_FULL)
            return Captured(update, [], None, [], states)
        what = f"{key}/{at}"
        self._mover.take(what, extent, layout.described, layout.places, tensors, brief=scale is not None, sent=sent)
        if self._layers is not None:
            self._layers.expect(key, what, layout, trained)
        return Captured(update, layout.described, extent, hyper, states)

    def _layout(self, at: int, named: list[tuple[str, torch.Tensor]]) -> Layout:
        """How these gradients are described and where they go: the same as last time, most often."""
        known = (at, tuple((name, gradient.dtype, gradient.shape) for name, gradient in named))
        if known not in self._layouts:
            if len(self._layouts) >= LAYOUTS_MAX:  # another set of gradients at every step: nothing to remember
                self._layouts.clear()
            blobs = [self._described(f"gradient/{at}/{name}", gradient) for name, gradient in named]
            self._layouts[known] = Layout(blobs, *offsets(blobs))
        return self._layouts[known]

    def _described(self, name: str, gradient: torch.Tensor) -> Tensor:
        told = describe(name, gradient)
        if not self._rounds or gradient.dtype is not torch.float32:
            return told
        return msgspec.structs.replace(told, dtype="BF16", nbytes=told.nbytes // 2)

    def _groups(
        self, key: str, optimizer: torch.optim.Optimizer, path: str
    ) -> tuple[list[Any] | None, list[tuple[Tensor, bytes]]]:
        """Hyper-parameters as they are now, or None when the log says so already."""
        values = [
            {name: value for name, value in group.items() if name != "params"} for group in optimizer.param_groups
        ]
        encoded = encode(path, values)
        text = msgspec.json.encode(encoded.tree)
        if self._hyper.get(key) == text and not encoded.blobs:
            return None, []
        self._hyper[key] = text
        return encoded.tree, list(encoded.blobs)

    def _look(self) -> None:
        self.digests = self._watch.look()
        self._states = self._look_at_states()

    def _look_at_states(self) -> list[Pair]:
        """What changes when somebody edits what an optimizer keeps."""
        states = [
            value for optimizer in self._roster.optimizers.values()
            for held in optimizer.state.values() if isinstance(held, dict) for value in held.values()
        ]  # fmt: skip
        return self._marks.look(states)

    def _break(self, why: str) -> None:
        self.why_base = self.why_base or why
