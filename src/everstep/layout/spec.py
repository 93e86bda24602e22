"""A spec: which part of which tensor each rank of a mesh holds. A pure function of names, shapes and a rank.

So every rank can say what every other one holds, and nobody has to be asked.
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from everstep.errors import Misdescribed
from everstep.layout import view as views
from everstep.layout.boxes import Shape
from everstep.layout.language import Flat, Layout, Partial, applied
from everstep.layout.mesh import Mesh, Seat
from everstep.layout.view import View
from everstep.types import Local

if TYPE_CHECKING:
    import torch

    from everstep.layout import adopted
    from everstep.layout import probe as probes


@dataclass(frozen=True, slots=True)
class Rule:
    """Tensors whose whole name fits `match` are laid out so. `logical` names the tensor of which they are parts, from
    what the pattern captures: `"layers.w"` for `layers\\.(?P<l>\\d+)\\.w` with `Stack`."""

    match: str
    layout: Layout = ()
    logical: str = ""


@dataclass(frozen=True, slots=True)
class Spec:
    """Rules for the tensors of one program on one mesh. The first that fits decides; one must."""

    mesh: Mesh
    rules: tuple[Rule, ...]
    aliases: Mapping[str, str] = field(default_factory=dict)
    """Names of tied tensors, and the name under which they are held."""
    shapes: Mapping[str, Shape] = field(default_factory=dict)
    """Of every tensor of the program, wherever it is, the shape of its *logical* tensor."""

    @staticmethod
    def from_dtensor(model: "torch.nn.Module") -> "Spec":
        """The spec of a model of DTensors: FSDP2, HSDP, tensor parallelism and their combinations."""
        from everstep.layout import adopted  # imports torch, which a spec does without

        return adopted.from_dtensor(model)

    @staticmethod
    def from_deepspeed(groups: Sequence[Mapping[str, Shape]], *, stage: int, ranks: int) -> "Spec":
        """The spec of ZeRO's flat shards: of each param group its parameters in order, with their shapes."""
        from everstep.layout import adopted

        return adopted.from_deepspeed(groups, stage=stage, ranks=ranks)

    @staticmethod
    def from_megatron(sharded: "Mapping[str, adopted.ShardedTensor]") -> dict[str, Local]:
        """What this rank holds, from the `sharded_state_dict()` of a Megatron model: it speaks of one rank only."""
        from everstep.layout import adopted

        return adopted.from_megatron(sharded)

    @staticmethod
    def probe(shard: "probes.Shard", shapes: Mapping[str, Shape], mesh: Mesh) -> list[dict[str, Local]]:
        """What each rank holds, found by sending numbered elements through the user's own sharding code."""
        from everstep.layout import probe as probes

        found = {name: probes.probe(shard, name, shape, mesh) for name, shape in shapes.items()}
        return [
            {name: held for name, by_rank in found.items() if (held := by_rank[rank]) is not None}
            for rank in range(mesh.size)
        ]

    def held(self, local: Mapping[str, Shape], rank: int, world: int) -> dict[str, Local]:
        """What this rank holds, if its tensors, with the shapes they have here, are what the spec says."""
        if self.mesh.size != world:
            raise Misdescribed(f"the spec's mesh has {self.mesh.size} ranks, and {world} train.")
        return agreed(self.locals(self.shapes, rank), local)

    def locals(self, shapes: Mapping[str, Shape], rank: int) -> dict[str, Local]:
        """What a rank holds, by the program's names; a name that is not there is held by others only.

        A name that no rule fits, and a rule that fits no name, are errors: both mean that something was overlooked.
        """
        coordinate = self.mesh.coordinate(rank)
        held: dict[str, tuple[Rule, Seat, View]] = {}
        for name, (rule, captured) in self.fits(shapes).items():
            seat = Seat(self.mesh, coordinate, captured)
            if (view := seen(name, shapes[name], rule, seat)) is not None:
                held[name] = (rule, seat, view)
        starts, lengths = buckets(held)
        return {
            name: lowered(name, shapes[name], rule, seat, view, starts.get(name, 0), lengths)
            for name, (rule, seat, view) in held.items()
        }

    def fits(self, shapes: Mapping[str, Shape]) -> dict[str, tuple[Rule, dict[str, str]]]:
        """Of every name the rule that lays it out, and what its pattern captures."""
        found: dict[str, tuple[Rule, dict[str, str]]] = {}
        unused = dict.fromkeys(rule.match for rule in self.rules)
        for name in shapes:
            if name in self.aliases:
                continue
            for rule in self.rules:
                if (fits := re.fullmatch(rule.match, name)) is not None:
                    found[name] = (rule, fits.groupdict())
                    unused.pop(rule.match, None)
                    break
        missed = [name for name in shapes if name not in found and name not in self.aliases]
        if missed or unused:
            raise Misdescribed(
                f"the spec does not fit the program: no rule for {missed[:5] or 'nothing'}, no tensor for rules "
                f"{list(unused)[:5] or 'none'}. Add a rule for each name; remove the others."
            )
        return found


def agreed(told: Mapping[str, Local], local: Mapping[str, Shape]) -> dict[str, Local]:
    """What is said of a rank's tensors, if they are there and have these shapes."""
    wrong = [f"{name!r} is here, and not in the spec" for name in local.keys() - told.keys()]
    wrong += [f"{name!r} should be here, and is not" for name in told.keys() - local.keys()]
    wrong += [
        f"{name!r} has shape {local[name]} here, and {held.shape} by the spec"
        for name, held in told.items() if name in local and local[name] != held.shape
    ]  # fmt: skip
    wrong += [f"{name!r}: {fault}" for name, held in told.items() if (fault := held.fault()) is not None]
    if wrong:
        raise Misdescribed(f"the spec does not fit the program: {'; '.join(sorted(wrong)[:5])}.")
    return dict(told)


def seen(name: str, shape: Shape, rule: Rule, seat: Seat) -> View | None:
    """What of a tensor is held on that seat, before it is flattened; None if it is not there at all."""
    try:
        return applied(rule.layout, views.full(with_versions(shape, rule, seat.mesh)), seat)
    except Misdescribed as wrong:
        raise Misdescribed(f"{name!r} by rule {rule.match!r}: {wrong}") from wrong


def with_versions(shape: Shape, rule: Rule, mesh: Mesh) -> Shape:
    """The shape of a logical tensor, with an axis more if ranks hold values of their own."""
    if any(isinstance(word, Partial) for word in rule.layout[1:]):
        raise Misdescribed(f"rule {rule.match!r}: Partial must be the first word, and only once.")
    first = rule.layout[0] if rule.layout else None
    return (mesh.extent(first.axis), *shape) if isinstance(first, Partial) else shape


def flat_word(rule: Rule) -> Flat | None:
    """The last word of a rule, if it flattens."""
    last = rule.layout[-1] if rule.layout else None
    if any(isinstance(word, Flat) for word in rule.layout[:-1]):
        raise Misdescribed(f"rule {rule.match!r}: Flat must be the last word.")
    return last if isinstance(last, Flat) else None


def buckets(held: Mapping[str, tuple[Rule, Seat, View]]) -> tuple[dict[str, int], dict[tuple[str, str], int]]:
    """Where each tensor begins in its bucket, and how long each bucket is; in the order of the names given."""
    starts: dict[str, int] = {}
    lengths: dict[tuple[str, str], int] = {}
    for name, (rule, _, view) in held.items():
        word = flat_word(rule)
        if word is not None and word.bucket:
            key = (word.axis, word.bucket)
            starts[name] = -(-lengths.get(key, 0) // word.align) * word.align
            lengths[key] = starts[name] + view.size
    return starts, lengths


def logical_name(name: str, rule: Rule, captured: Mapping[str, str]) -> str:
    """The tensor of which `name` is a part."""
    try:
        return (rule.logical or name).format_map(captured) if "{" in rule.logical else rule.logical or name
    except KeyError as wrong:
        raise Misdescribed(f"rule {rule.match!r} captures nothing named {wrong} for {rule.logical!r}.") from wrong


def lowered(
    name: str, shape: Shape, rule: Rule, seat: Seat, view: View, start: int, lengths: Mapping[tuple[str, str], int]
) -> Local:
    """The pieces of a view. A flat one begins at `start` of its bucket, and `lengths` says how long that is."""
    logical, word = logical_name(name, rule, seat.captured), flat_word(rule)
    first = rule.layout[0] if rule.layout else None
    shape, versions = with_versions(shape, rule, seat.mesh), (first.reduce,) if isinstance(first, Partial) else ()
    if word is None:
        return Local(logical, shape, view.shape, tuple(view.lower()), versions)
    at, count = seat.on(word.axis)
    share = share_of(word, view, count, lengths)
    low, high = max(start, at * share), min(start + view.size, (at + 1) * share)
    pieces = view.lower_flat(low - start, high - start, low - at * share) if low < high else []
    return Local(logical, shape, (share,), tuple(pieces), versions)


def share_of(word: Flat, view: View, count: int, lengths: Mapping[tuple[str, str], int]) -> int:
    """How many elements of a flat tensor, or of its bucket, each of `count` ranks has."""
    total = lengths[word.axis, word.bucket] if word.bucket else view.size
    grain = math.lcm(word.align, word.pad)
    return -(-total // (count * grain)) * grain
