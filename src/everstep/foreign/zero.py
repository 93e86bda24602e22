"""Flat shards of ZeRO to boxes of logical tensors.

Stages 1 and 2 cut one flat buffer per parameter group into equal parts, a rank each; the file says where in its part a
parameter's fragment lies, and the fragments of one parameter follow each other over the ranks. Stage 3 cuts every
parameter by itself into parts of ceil(elements / ranks). Paddings are in neither's boxes.
"""

import math
from collections import defaultdict
from dataclasses import dataclass, field, replace

from everstep.errors import Damaged
from everstep.foreign import trees
from everstep.foreign.found import Part, Stored
from everstep.foreign.plain import Tree, without_tensors
from everstep.foreign.saved import part_of
from everstep.foreign.trees import Node, Shapes
from everstep.types import whole

MASTER = "fp32"
"""The state key of the weights themselves."""


@dataclass(frozen=True, slots=True)
class RankFile:
    """One rank's file, and the tree in it."""

    path: str
    tree: Tree


@dataclass(slots=True)
class Merged:
    """Logical tensors by (state key, parameter), and the numbers that belong to a parameter."""

    tensors: dict[tuple[str, str], Stored] = field(default_factory=dict)
    numbers: dict[tuple[str, str], Tree] = field(default_factory=dict)
    unknown: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Fragment:
    """`count` elements from element `first` of a parameter, which lie from `start` on in a rank's flat tensors."""

    name: str
    start: int
    first: int
    count: int


def by_fragments(ranks: list[RankFile], shapes: list[Shapes]) -> Merged:
    """Stages 1 and 2."""
    gathered = _Gathered()
    for group, members in enumerate(shapes):
        done: dict[str, int] = dict.fromkeys(members, 0)
        for rank in ranks:
            state = trees.at(rank.tree, rank.path, "optimizer_state_dict")
            fragments = []
            for key, said in trees.node(state, rank.path, "param_slice_mappings", group).items():
                name, count = str(key), trees.count(said, rank.path, "numel")
                if name not in members:
                    raise Damaged(f"{rank.path}: holds a part of {name!r}, which the model does not have.")
                fragments.append(Fragment(name, trees.count(said, rank.path, "start"), done[name], count))
                done[name] += count
            flat = _states(state, rank.path, "base_optimizer_state", group)
            master = trees.at(state, rank.path, "single_partition_of_fp32_groups", group)
            gathered.take(rank.path, {MASTER: master, **flat}, fragments, members)
        for name, shape in members.items():
            if done[name] != math.prod(shape):
                raise Damaged(
                    f"{ranks[-1].path}: all ranks hold {done[name]} elements of {name!r}, not {math.prod(shape)}: "
                    f"a rank's file is missing or of another save."
                )
    return gathered.merged()


def by_parameter(ranks: list[RankFile], shapes: list[Shapes]) -> Merged:
    """Stage 3; a list item of `shapes` is one flat tensor of every rank."""
    gathered = _Gathered()
    for group, members in enumerate(shapes):
        taken: set[int] = set()
        for number, rank in enumerate(ranks):
            state = trees.at(rank.tree, rank.path, "optimizer_state_dict")
            count, own = _partition(state, rank.path, group, len(ranks), number)
            if own in taken:  # ranks that replicate each other
                continue
            taken.add(own)
            fragments, start = [], 0
            for name, shape in members.items():
                fragments.append(piece(name, shape, start, count, own))
                start += -(-math.prod(shape) // count)
            flat = _states(state, rank.path, "optimizer_state_dict", group)
            master = trees.at(state, rank.path, "fp32_flat_groups", group)
            gathered.take(rank.path, {MASTER: master, **flat}, fragments, members)
    return gathered.merged()


def piece(name: str, shape: tuple[int, ...], start: int, ranks: int, rank: int) -> Fragment:
    """A rank's part of a parameter that is cut evenly, without the last ranks' padding."""
    total = math.prod(shape)
    each = -(-total // ranks)
    first = min(total, rank * each)
    return Fragment(name, start, first, min(each, total - first))


class _Gathered:
    """Parts of tensors, as the ranks' files are walked."""

    def __init__(self) -> None:
        self._parts: dict[tuple[str, str], list[Part]] = defaultdict(list)
        self._kinds: dict[tuple[str, str], tuple[str, tuple[int, ...]]] = {}
        self._merged = Merged()
        self._path = ""

    def take(self, path: str, flat: dict[str, Tree], fragments: list[Fragment], shapes: Shapes) -> None:
        """What one rank's flat tensors hold of the parameters."""
        self._path = path
        for key, value in flat.items():
            for fragment in fragments:
                name = fragment.name
                if not isinstance(value, Stored):
                    self._other((key, name), value, path)
                elif math.prod(value.shape) == 1 and key == "step":
                    self._scalar((key, name), value, path)
                else:
                    shape = shapes[name]
                    if self._kinds.setdefault((key, name), (value.dtype, shape))[0] != value.dtype:
                        raise Damaged(f"{path}: {name!r} has another element type than in the ranks before.")
                    parts = part_of(value, fragment.start, shape, fragment.first, fragment.count)
                    if not math.prod(shape):  # nothing to hold, and not to be lost for that
                        parts = [(whole(shape), replace(value.parts[0][1], nbytes=0))][: not self._parts[key, name]]
                    self._parts[key, name] += parts

    def merged(self) -> Merged:
        for key, (dtype, shape) in self._kinds.items():
            if not self._parts[key]:
                raise Damaged(f"{self._path}: neither this nor another rank's file holds a part of {key[1]!r}.")
            self._merged.tensors[key] = Stored(dtype, shape, tuple(self._parts[key]))
        return self._merged

    def _other(self, key: tuple[str, str], value: Tree, path: str) -> None:
        if not without_tensors(value):
            self._merged.unknown.append(f"optimizer/{key[0]}/{key[1]}: {getattr(value, 'what', 'a tree with tensors')}")
        elif self._merged.numbers.setdefault(key, value) != value:
            raise Damaged(f"{path}: {key[0]} of {key[1]!r} differs from the ranks before: files of different saves.")

    def _scalar(self, key: tuple[str, str], value: Stored, path: str) -> None:
        kept = self._merged.tensors.setdefault(key, value)
        if kept.parts[0][1].crc32 != value.parts[0][1].crc32:
            raise Damaged(f"{path}: {key[0]} of {key[1]!r} differs from the ranks before: files of different saves.")


def _states(state: Tree, path: str, key: str, group: int) -> dict[str, Tree]:
    """The optimizer's own tensors of a flat group: a state dict, or in elastic checkpoints a list of them."""
    base = trees.at(state, path, key)
    inner: Node = trees.node(base, path, "state") if isinstance(base, dict) else dict(enumerate(trees.row(base, path)))
    return {str(kind): value for kind, value in trees.node(inner.get(group, {}), path).items()}


def _partition(state: Tree, path: str, group: int, ranks: int, rank: int) -> tuple[int, int]:
    """Into how many parts a flat group is cut, and which this is, where the file says so."""
    said = trees.node(state, path).get("ds_zero_partition_groups")
    if not isinstance(said, list) or group >= len(said):
        return ranks, rank
    count, own = trees.count(said[group], path, "partition_count"), trees.count(said[group], path, "partition_rank")
    if not 0 <= own < count <= ranks:
        raise Damaged(f"{path}: part {own} of {count} among {ranks} ranks cannot be.")
    return count, own
