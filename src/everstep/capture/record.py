"""The body of a record: what the optimizers consumed since the last commit, and what else the step changed."""

from dataclasses import dataclass

from everstep.capture.context import Context
from everstep.capture.digests import digest
from everstep.capture.hooks import Hooks
from everstep.capture.roster import Roster
from everstep.capture.snapshot import optimizer_tensors
from everstep.codec import body
from everstep.ring.pen import Extent
from everstep.store.base import state_digest
from everstep.types import Bytes, Pair, combine


@dataclass(frozen=True, slots=True)
class Taken:
    """A body: its head, the gradients that lie in the ring already, and the small rest."""

    head: bytes
    gradients: list[Extent]
    tail: list[Bytes]

    @property
    def nbytes(self) -> int:
        rest = sum(memoryview(piece).nbytes for piece in self.tail)
        return len(self.head) + sum(extent.nbytes for extent in self.gradients) + rest


def take(hooks: Hooks, context: Context, roster: Roster, *, whole: bool) -> Taken:
    """The step just taken. With `whole` it carries a digest of the whole state, else of the parameters only."""
    items = context.changed()
    updates = hooks.handed_over()
    groups, small = hooks.final_groups()
    small = [blob for update in updates for blob in update.small] + small
    small += [blob for item in items.values() for blob in item.blobs]
    pairs = parameter_digests(hooks, roster)
    head = body.Head(
        tuple(update.update for update in updates),
        groups,
        {name: item.tree for name, item in items.items()},
        combine(pairs.items()),
        whole_digest(pairs, roster) if whole else None,
        (*(blob for update in updates for blob in update.gradients), *(blob for blob, _ in small)),
    )
    gradients = [update.extent for update in updates if update.extent is not None]
    return Taken(body.head_piece(head), gradients, body.aligned(small))


def take_rebase(hooks: Hooks, roster: Roster) -> bytes:
    """The body of a record that only a base can reach: it says what the state must prove to be, nothing else."""
    pairs = parameter_digests(hooks, roster)
    return body.head_piece(body.Head((), {}, {}, combine(pairs.items()), whole_digest(pairs, roster), ()))


def parameter_digests(hooks: Hooks, roster: Roster) -> dict[str, Pair]:
    return {f"model/{name}": pair for name, pair in zip(roster.parameters, hooks.digests, strict=True)}


def whole_digest(pairs: dict[str, Pair], roster: Roster) -> str:
    tensors = optimizer_tensors(roster)
    return state_digest(pairs | dict(zip(tensors, digest(list(tensors.values())), strict=True)))
