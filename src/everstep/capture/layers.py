"""Sends each gradient on its way as soon as backward has made it, layer by layer, instead of all when backward ends.

What is sent may still change: gradients accumulate, are reduced, are clipped. Whoever changes one raises its version
counter, so before the optimizer consumes them all are looked at again, and what changed is sent once more, behind the
first copy, to the same place. Only gradients that may be read in place at all (`freshness`) are sent early.
"""

import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch

from everstep.capture.mover import Mover
from everstep.capture.shards import local
from everstep.ring.pen import Extent
from everstep.types import Tensor

BUCKET_BYTES = 24 << 20
"""So many bytes are queued with one call."""


@dataclass(frozen=True, slots=True)
class Layout:
    """The gradients of one optimizer step: what they are, and where they go."""

    described: list[Tensor]
    places: list[int]
    nbytes: int


@dataclass(slots=True)
class Journey:
    """The gradients of one optimizer, from the first layer of backward to the optimizer's step."""

    what: str
    layout: Layout
    at: dict[int, int]
    """Each parameter's place in the layout, by identity."""
    extent: Extent | None = None
    waiting: dict[int, torch.Tensor] = field(default_factory=dict)
    waiting_bytes: int = 0
    sent: dict[int, "Mark"] = field(default_factory=dict)


class Layers:
    """Told of every optimizer step; from the second on that looks alike, gradients are sent during backward."""

    def __init__(
        self, parameters: Sequence[torch.Tensor], mover: Mover, room: Callable[[int], Extent | None],
        failed: Callable[[str], None],
    ) -> None:  # fmt: skip
        self._mover, self._room, self._failed = mover, room, failed
        self._journeys: dict[str, Journey] = {}
        self._of: dict[int, Journey] = {}
        self._handles = [
            parameter.register_post_accumulate_grad_hook(self._made_safely)  # type: ignore[no-untyped-call]
            for parameter in parameters if parameter.requires_grad and parameter.is_leaf
        ]  # fmt: skip

    def expect(self, key: str, what: str, layout: Layout, parameters: Sequence[torch.Tensor]) -> None:
        """The optimizer `key` has consumed these: the next backward will make the like of them."""
        known = self._journeys.get(key)
        if known is not None and known.layout is layout:
            return
        self._journeys[key] = Journey(what, layout, {id(parameter): at for at, parameter in enumerate(parameters)})
        self._of = {identity: journey for journey in self._journeys.values() for identity in journey.at}

    def arrived(self, key: str, layout: Layout, gradients: Sequence[torch.Tensor]) -> tuple[Extent | None, set[int]]:
        """Where the gradients of this step are being sent to, and which of them need not be sent again."""
        journey = self._journeys.get(key)
        if journey is None or journey.extent is None or journey.layout is not layout:
            return None, set()
        self._send(journey)
        extent, sent = journey.extent, journey.sent
        journey.extent, journey.sent = None, {}
        return extent, {at for at, gradient in enumerate(gradients) if at in sent and sent[at].fits(gradient)}

    def forget(self) -> None:
        """What was sent belongs to no record: its room is given back, and nothing may be copied there any more."""
        if any(journey.extent is not None for journey in self._journeys.values()):
            self._mover.synchronize()
        for journey in self._journeys.values():
            journey.extent, journey.waiting_bytes = None, 0
            journey.waiting.clear()
            journey.sent.clear()

    def remove(self) -> None:
        self._of = {}
        self._room, self._failed = lambda _nbytes: None, lambda _why: None
        for handle in self._handles:
            handle.remove()

    def _made_safely(self, parameter: torch.Tensor) -> None:
        try:
            self._made(parameter)
        except Exception as failed:  # noqa: BLE001 backward must go on; from now on gradients are taken at its end
            self._of = {}
            self._failed(f"a gradient could not be sent during backward ({type(failed).__name__}: {failed})")

    def _made(self, parameter: torch.Tensor) -> None:
        """Backward has accumulated into this parameter's gradient."""
        journey = self._of.get(id(parameter))
        if journey is None or parameter.grad is None or not self._mover.in_place(journey.what):
            return
        gradient = local(parameter.grad)
        at = journey.at[id(parameter)]
        told = journey.layout.described[at]
        if not gradient.is_contiguous() or gradient.nbytes != told.nbytes:
            return
        if journey.extent is None:
            journey.extent = self._room(journey.layout.nbytes)
            if journey.extent is None:
                return
        if at not in journey.waiting:
            journey.waiting_bytes += told.nbytes
        journey.waiting[at] = gradient
        if journey.waiting_bytes >= BUCKET_BYTES:
            self._send(journey)

    def _send(self, journey: Journey) -> None:
        indices, gradients = list(journey.waiting), list(journey.waiting.values())
        if not indices or journey.extent is None:
            return
        described = [journey.layout.described[at] for at in indices]
        self._mover.send(journey.extent, described, [journey.layout.places[at] for at in indices], gradients)
        journey.sent |= {at: Mark(gradient) for at, gradient in zip(indices, gradients, strict=True)}
        journey.waiting.clear()
        journey.waiting_bytes = 0


class Mark:
    """Tells whether it is still the same tensor, in the same place, and nobody wrote to it."""

    def __init__(self, gradient: torch.Tensor) -> None:
        self._gradient = weakref.ref(gradient)
        self._then = (gradient.data_ptr(), gradient._version)  # noqa: SLF001

    def fits(self, gradient: torch.Tensor) -> bool:
        return self._gradient() is gradient and self._then == (gradient.data_ptr(), gradient._version)  # noqa: SLF001
