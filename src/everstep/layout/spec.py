"""A spec: which part of which tensor each rank of a mesh holds. A pure function of names, shapes and a rank.

So every rank can say what every other one holds, and nobody has to be asked.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from everstep.errors import Misdescribed
from everstep.layout import view as views
from everstep.layout.boxes import Shape
from everstep.layout.language import Flat, Layout, Partial, applied
from everstep.layout.mesh import Mesh, Seat
from everstep.layout.view import Piece, View


@dataclass(frozen=True, slots=True)
class Rule:
    """Tensors whose whole name fits `match` are laid out so. `logical` names the tensor of which they are parts, from
    what the pattern captures: `"layers.w"` for `layers\\.(?P<l>\\d+)\\.w` with `Stack`."""

    match: str
    layout: Layout = ()
    logical: str = ""


@dataclass(frozen=True, slots=True)
class Local:
    """What a rank holds under one of its names: pieces of a logical tensor in a buffer, which a bucket shares."""

    logical: str
    logical_shape: Shape
    shape: Shape
    """Of the local tensor; of a flat one, the length of the rank's share with its padding."""
    pieces: tuple[Piece, ...]
    versions: tuple[tuple[str, int], ...] = ()
    """Where other ranks hold other values of the same elements (`Partial`): which mesh axis, and which of its ranks."""


@dataclass(frozen=True, slots=True)
class Spec:
    """Rules for the tensors of one program on one mesh. The first that fits decides; one must."""

    mesh: Mesh
    rules: tuple[Rule, ...]
    aliases: Mapping[str, str] = field(default_factory=dict)
    """Names of tied tensors, and the name under which they are held."""

    def locals(self, shapes: Mapping[str, Shape], rank: int) -> dict[str, Local]:
        """What a rank holds, by the program's names; a name that is not there is held by others only.

        `shapes`: of every tensor of the program, wherever it is, the shape of its *logical* tensor.

        A name that no rule fits, and a rule that fits no name, are errors: both mean that something was overlooked.
        """
        seats = self._seats(shapes, rank)
        held: dict[str, tuple[Rule, Seat, View]] = {}
        for name, (rule, seat) in seats.items():
            try:
                view = applied(rule.layout, views.full(shapes[name]), seat)
            except Misdescribed as wrong:
                raise Misdescribed(f"{name!r} by rule {rule.match!r}: {wrong}") from wrong
            if view is not None:
                held[name] = (rule, seat, view)
        starts, lengths = _buckets(held)
        return {
            name: _local(name, shapes[name], rule, seat, view, starts.get(name, 0), lengths)
            for name, (rule, seat, view) in held.items()
        }

    def _seats(self, shapes: Mapping[str, Shape], rank: int) -> dict[str, tuple[Rule, Seat]]:
        coordinate = self.mesh.coordinate(rank)
        found: dict[str, tuple[Rule, Seat]] = {}
        unused = dict.fromkeys(rule.match for rule in self.rules)
        for name in shapes:
            if name in self.aliases:
                continue
            for rule in self.rules:
                if (fits := re.fullmatch(rule.match, name)) is not None:
                    found[name] = (rule, Seat(self.mesh, coordinate, fits.groupdict()))
                    unused.pop(rule.match, None)
                    break
        missed = [name for name in shapes if name not in found and name not in self.aliases]
        if missed or unused:
            raise Misdescribed(
                f"the spec does not fit the program: no rule for {missed[:5] or 'nothing'}, no tensor for rules "
                f"{list(unused)[:5] or 'none'}. Add a rule for each name; remove the others."
            )
        return found


def _flat(rule: Rule) -> Flat | None:
    last = rule.layout[-1] if rule.layout else None
    if any(isinstance(word, Flat) for word in rule.layout[:-1]):
        raise Misdescribed(f"rule {rule.match!r}: Flat must be the last word.")
    return last if isinstance(last, Flat) else None


def _buckets(held: Mapping[str, tuple[Rule, Seat, View]]) -> tuple[dict[str, int], dict[tuple[str, str], int]]:
    """Where each tensor begins in its bucket, and how long each bucket is; in the order of the names given."""
    starts: dict[str, int] = {}
    lengths: dict[tuple[str, str], int] = {}
    for name, (rule, _, view) in held.items():
        word = _flat(rule)
        if word is not None and word.bucket:
            key = (word.axis, word.bucket)
            starts[name] = -(-lengths.get(key, 0) // word.align) * word.align
            lengths[key] = starts[name] + view.size
    return starts, lengths


def _local(
    name: str, shape: Shape, rule: Rule, seat: Seat, view: View, start: int, lengths: Mapping[tuple[str, str], int]
) -> Local:
    try:
        logical = (rule.logical or name).format_map(seat.captured) if "{" in rule.logical else rule.logical or name
    except KeyError as wrong:
        raise Misdescribed(f"rule {rule.match!r} captures nothing named {wrong} for {rule.logical!r}.") from wrong
    word = _flat(rule)
    versions = tuple((told.axis, seat.on(told.axis)[0]) for told in rule.layout if isinstance(told, Partial))
    if word is None:
        return Local(logical, shape, view.shape, tuple(view.lower()), versions)
    at, count = seat.on(word.axis)
    total = lengths[word.axis, word.bucket] if word.bucket else view.size
    share = -(-total // (count * word.align)) * word.align
    low, high = max(start, at * share), min(start + view.size, (at + 1) * share)
    pieces = view.lower_flat(low - start, high - start, low - at * share) if low < high else []
    return Local(logical, shape, (share,), tuple(pieces), versions)
