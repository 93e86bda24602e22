"""The body of a record: what the optimizers consumed since the last commit, and what else the step changed."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from everstep.capture.context import Context
from everstep.capture.digests import digest
from everstep.capture.hooks import Hooks
from everstep.capture.roster import Roster
from everstep.capture.snapshot import optimizer_tensors
from everstep.codec import body
from everstep.ring.pen import Extent
from everstep.store.base import parameters_digest, state_digest
from everstep.types import Bytes, Pair, Tensor, padded


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
    hooks: Hooks, context: Context, roster: Roster, *, whole: bool, before: Mapping[str, Pair] | None = None,
    owned: frozenset[str] | None = None,
) -> Taken:  # fmt: skip
    """The step just taken. With `whole` it carries a digest of the whole state, else of the parameters only.

    Of a device's state it carries none; `before` is what its digests were a step ago. The disk gets what concerns the
    parameters `owned`, or all.
    """
    items = context.changed()
    updates = hooks.handed_over()
    groups, small = hooks.final_groups()
    small = [blob for update in updates for blob in update.small] + small
    small += [blob for item in items.values() for blob in item.blobs]
    far = [pair for item in items.values() for pair in item.far]
    pairs = parameter_digests(hooks, roster)
    pairs |= _optimizer_digests(roster) if whole and pairs else {}
    tables = ([blob for update in updates for blob in update.gradients], [t for t, _ in far], [t for t, _ in small])
    blobs = tuple(blob for table in tables for blob in table)
    head = body.Head(
        tuple(update.update for update in updates), groups, {name: item.tree for name, item in items.items()},
        *_digests(pairs, whole=whole), blobs, _before(before),
        None if owned is None else _share(blobs, pairs, before, roster, owned, whole=whole),
    )  # fmt: skip
    gradients = [update.extent for update in updates if update.extent is not None]
    return Taken(body.head_piece(head), gradients, far, body.aligned(small))


def take_rebase(hooks: Hooks, roster: Roster, owned: frozenset[str] | None = None) -> bytes:
    """The body of a record that only a base can reach: it says what the state must prove to be, nothing else."""
    pairs = parameter_digests(hooks, roster)
    pairs |= _optimizer_digests(roster) if pairs else {}
    share = None if owned is None else _share((), pairs, None, roster, owned, whole=True)
    return body.head_piece(body.Head((), {}, {}, *_digests(pairs, whole=True), (), share=share))


def parameter_digests(hooks: Hooks, roster: Roster) -> dict[str, Pair]:
    """Of every parameter, after the last optimizer step; none where the device would have to be waited for."""
    if not hooks.exact:
        return {}
    return {f"model/{name}": pair for name, pair in zip(roster.parameters, hooks.digests, strict=True)}


def _optimizer_digests(roster: Roster) -> dict[str, Pair]:
    tensors = optimizer_tensors(roster)
    return dict(zip(tensors, digest(list(tensors.values())), strict=True))


def _digests(pairs: Mapping[str, Pair], *, whole: bool) -> tuple[str, str | None]:
    """What a record says of the parameters and of the whole state; nothing where nothing was digested."""
    return (parameters_digest(pairs), state_digest(pairs) if whole else None) if pairs else ("", None)


def _before(pairs: Mapping[str, Pair] | None) -> tuple[str, str] | None:
    return None if pairs is None else (parameters_digest(pairs), state_digest(pairs))


def _share(
    blobs: Sequence[Tensor], pairs: Mapping[str, Pair], before: Mapping[str, Pair] | None, roster: Roster,
    owned: frozenset[str], *, whole: bool,
) -> body.Share:  # fmt: skip
    """What the disk gets of a record that other ranks have as well."""
    prefixes = tuple(f"optimizer/{key}/" for key in roster.optimizers)
    kept = tuple(
        at for at, blob in enumerate(blobs)
        if not blob.name.startswith("gradient/") or blob.name.split("/", 2)[2] in owned
    )  # fmt: skip
    mine, then = (
        None if found is None else {name: pair for name, pair in found.items() if _parameter(name, prefixes) in owned}
        for found in (pairs, before)
    )
    return body.Share(kept, *_digests(mine or {}, whole=whole), _before(then))


def _parameter(name: str, prefixes: Sequence[str]) -> str:
    """The parameter that a tensor of the state belongs to. The optimizers that this is for nest nothing."""
    prefix = next((known for known in prefixes if name.startswith(known)), None)
    return name.removeprefix("model/") if prefix is None else name.removeprefix(prefix).rpartition("/")[0]
