"""What all ranks of a mesh hold of one tensor, without going through the ranks.

A seat is filled in axis by axis, as the words of a rule ask where on an axis they are: an axis nobody asks for makes
copies, not work, and a stage that does not have the tensor ends there. 16,384 ranks are a few hundred seats per tensor.
"""

import itertools
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TypeVar

from everstep.layout.boxes import Shape
from everstep.layout.language import Flat
from everstep.layout.mesh import Mesh, Seat
from everstep.layout.spec import Rule, Spec, buckets, flat_word, logical_name, lowered, seen, share_of
from everstep.layout.view import View
from everstep.types import Box

Coordinate = dict[str, int]
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Held:
    """A box, and the ranks that hold it: all that stand at `coordinate`, wherever they are on the other axes."""

    box: Box
    mesh: Mesh
    coordinate: Mapping[str, int]

    def ranks(self) -> Iterator[int]:
        """All of them, in order."""
        free = [(name, range(count)) for name, count in self.mesh.axes if name not in self.coordinate]
        for others in itertools.product(*(places for _, places in free)):
            yield self.mesh.rank({**self.coordinate, **dict(zip((name for name, _ in free), others, strict=True))})

    @property
    def first(self) -> int:
        return self.mesh.rank({name: self.coordinate.get(name, 0) for name, _ in self.mesh.axes})

    @property
    def copies(self) -> int:
        return math.prod(count for name, count in self.mesh.axes if name not in self.coordinate)


class Everyone:
    """The ranks of a spec's mesh. `shapes` as for `Spec.locals`; rules are matched once."""

    def __init__(self, spec: Spec, shapes: Mapping[str, Shape]) -> None:
        self._spec = spec
        self._shapes = shapes
        self._fits = spec.fits(shapes)
        self._names: dict[str, list[str]] = {}
        for name, (rule, captured) in self._fits.items():
            self._names.setdefault(logical_name(name, rule, captured), []).append(name)
        self._buckets: dict[tuple[str, str], list[tuple[Coordinate, dict[str, View]]]] = {}

    def held(self, logical: str) -> list[Held]:
        """The boxes of a logical tensor that anyone holds."""
        found: list[Held] = []
        for name in self._names.get(logical, ()):
            rule, _ = self._fits[name]
            word = flat_word(rule)
            if word is None:
                found += self._plain(name, rule)
            else:
                found += self._flat(name, rule, word)
        return found

    def _plain(self, name: str, rule: Rule) -> Iterator[Held]:
        for at, view in self._seats(lambda at: self._seen(name, rule, at)):
            if view is not None:
                for part in view.parts:
                    yield Held(part.box, self._spec.mesh, at)

    def _flat(self, name: str, rule: Rule, word: Flat) -> Iterator[Held]:
        """A flat tensor is cut among the ranks of an axis: those that have something of it are found by division."""
        mesh, count = self._spec.mesh, self._spec.mesh.extent(word.axis)
        for at, views in self._together(word) if word.bucket else self._alone(name, rule):
            if (view := views.get(name)) is None or not view.size:
                continue
            held = {other: (self._fits[other][0], self._seat(other, at), one) for other, one in views.items()}
            starts, lengths = buckets(held)
            start = starts.get(name, 0)
            share = share_of(word, view, count, lengths)
            for place in range(start // share, -(-(start + view.size) // share)):
                seat = {**at, word.axis: place}
                local = lowered(name, self._shapes[name], rule, self._seat(name, seat), view, start, lengths)
                for piece in local.pieces:
                    yield Held(piece.box, mesh, seat)

    def _alone(self, name: str, rule: Rule) -> Iterator[tuple[Coordinate, dict[str, View]]]:
        for at, view in self._seats(lambda at: self._seen(name, rule, at)):
            if view is not None:
                yield at, {name: view}

    def _together(self, word: Flat) -> list[tuple[Coordinate, dict[str, View]]]:
        """The tensors of a bucket on every seat where they lie differently."""
        key = (word.axis, word.bucket)
        if key not in self._buckets:
            rules = {name: rule for name, (rule, _) in self._fits.items() if _bucket(rule) == key}

            def all_of_them(at: Coordinate) -> dict[str, View]:
                views = {name: self._seen(name, rule, at) for name, rule in rules.items()}
                return {name: view for name, view in views.items() if view is not None}

            self._buckets[key] = list(self._seats(all_of_them))
        return self._buckets[key]

    def _seats(self, look: Callable[[Coordinate], T]) -> Iterator[tuple[Coordinate, T]]:
        """What is seen from every seat that differs. `look` raises KeyError for an axis whose place it must know."""
        axes = dict(self._spec.mesh.axes)
        waiting: list[Coordinate] = [{}]
        while waiting:
            at = waiting.pop()
            try:
                found = look(at)
            except KeyError as asked:
                axis = asked.args[0]
                if axis not in axes or axis in at:
                    raise  # a word's own mistake
                waiting += [{**at, axis: place} for place in reversed(range(axes[axis]))]
                continue
            yield at, found

    def _seen(self, name: str, rule: Rule, at: Coordinate) -> View | None:
        return seen(name, self._shapes[name], rule, self._seat(name, at))

    def _seat(self, name: str, at: Coordinate) -> Seat:
        return Seat(self._spec.mesh, at, self._fits[name][1])


def _bucket(rule: Rule) -> tuple[str, str] | None:
    word = flat_word(rule)
    return (word.axis, word.bucket) if word is not None and word.bucket else None
