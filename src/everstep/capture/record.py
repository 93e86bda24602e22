"""The body of a record: what the optimizers consumed since the last commit, and what else the step changed."""

from dataclasses import dataclass

import torch

from everstep.capture.context import Context
from everstep.capture.digests import digest
from everstep.capture.hooks import Hooks
from everstep.capture.roster import Roster
from everstep.capture.snapshot import optimizer_tensors
from everstep.codec import body
from everstep.ring.pen import Extent
from everstep.store.base import state_digest
from everstep.types import Bytes, Pair, Tensor, combine, padded


@dataclass(frozen=True, slots=True)
class Taken:
    """A body: its head, the gradients that lie in the ring already, what is to be copied from the device (`far`), and
    the small rest."""

    head: bytes
    gradients: list[Extent]
    far: list[tuple[Tensor, torch.Tensor]]
    tail: list[Bytes]

    @property
    def rest_bytes(self) -> int:
        """What does not lie in the ring yet."""
        far = sum(padded(told.nbytes) for told, _ in self.far)
        return len(self.head) + far + sum(memoryview(piece).nbytes for piece in self.tail)

    @property
    def nbytes(self) -> int:
        return self.rest_bytes + sum(extent.nbytes for extent in self.gradients)


def take(
    hooks: Hooks, context: Context, roster: Roster, *, whole: bool, before: tuple[str, str] | None = None
) -> Taken:
    """The step just taken. With `whole` it carries a digest of the whole state, else of the parameters only.

    Of a device's state it carries none; `before` is what its digests were a step ago.
    """
    items = context.changed()
    updates = hooks.handed_over()
    groups, small = hooks.final_groups()
    small = [blob for update in updates for blob in update.small] + small
    small += [blob for item in items.values() for blob in item.blobs]
    far = [pair for item in items.values() for pair in item.far]
    pairs = parameter_digests(hooks, roster)
    tables = ([blob for update in updates for blob in update.gradients], [t for t, _ in far], [t for t, _ in small])
    head = body.Head(
        tuple(update.update for update in updates),
        groups,
        {name: item.tree for name, item in items.items()},
        combine(pairs.items()) if pairs else "",
        whole_digest(pairs, roster) if whole and pairs else None,
        tuple(blob for table in tables for blob in table),
        before,
    )
    gradients = [update.extent for update in updates if update.extent is not None]
    return Taken(body.head_piece(head), gradients, far, body.aligned(small))


def take_rebase(hooks: Hooks, roster: Roster) -> bytes:
    """The body of a record that only a base can reach: it says what the state must prove to be, nothing else."""
    pairs = parameter_digests(hooks, roster)
    if not pairs:
        return body.head_piece(body.Head((), {}, {}, "", None, ()))
    return body.head_piece(body.Head((), {}, {}, combine(pairs.items()), whole_digest(pairs, roster), ()))


def parameter_digests(hooks: Hooks, roster: Roster) -> dict[str, Pair]:
    """Of every parameter, after the last optimizer step; none where the device would have to be waited for."""
    if not hooks.exact:
        return {}
    return {f"model/{name}": pair for name, pair in zip(roster.parameters, hooks.digests, strict=True)}


def whole_digest(pairs: dict[str, Pair], roster: Roster) -> str:
    tensors = optimizer_tensors(roster)
    return state_digest(pairs | dict(zip(tensors, digest(list(tensors.values())), strict=True)))
