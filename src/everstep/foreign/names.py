"""From a tree of nested state dicts to logical names.

Everybody nests differently: a bare state dict, `{"model": .., "optimizer": ..}`, an application's state around it. What
is told apart here is only what can be: an optimizer is a dict with `state` and `param_groups` (or their flattened
form), a model is what lies below a key that is usual for one, or everything, where no such key is.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from everstep.errors import Damaged, Unsupported
from everstep.foreign.found import Checkpoint, Plain, Stored, named
from everstep.foreign.groups import Optimizer, is_optimizer, optimizer
from everstep.foreign.plain import Opaque, Tree, keyed, without_tensors

MODELS = ("model", "module", "model_state_dict", "state_dict", "net", "network", "weights", "params")
"""Keys that usually hold a model's state dict."""

Path = tuple[str | int, ...]


@dataclass(slots=True)
class Arranged:
    """Everything of a tree by its logical name."""

    where: str
    tensors: dict[str, Stored] = field(default_factory=dict)
    objects: dict[str, Plain] = field(default_factory=dict)
    aliases: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)
    buffers: set[str] = field(default_factory=set)

    def checkpoint(self, kind: str) -> Checkpoint:
        """As the result of reading."""
        found = tuple(part for name, stored in self.tensors.items() for part in named(name, stored))
        if any(part.place.crc32 is None and part.place.nbytes for part in found):
            self.notes.append("written with torch's checksums switched off: verify proves nothing of some tensors.")
        return Checkpoint(
            kind, self.where, found, self.objects, self.aliases, tuple(self.notes), tuple(self.unknown),
            frozenset(self.buffers),
        )  # fmt: skip

    def add(self, name: str, value: Tree) -> None:
        """One leaf under its name."""
        if name in self.tensors or name in self.objects:
            raise Unsupported(f"{self.where}: two things in the checkpoint would both be called {name!r}.")
        if isinstance(value, Stored):
            self.tensors[name] = value
        elif isinstance(value, Opaque):
            self.unknown.append(f"{name}: {value.what}")
        elif without_tensors(value):
            self.objects[name] = keyed(value)


def arranged(tree: Tree, where: str, *, has_model: bool = True) -> Arranged:
    """Name everything in a tree; `where` it is from, for errors. Without a model in it no tensor is taken for one."""
    result = Arranged(where)
    optimizers = list(_optimizers(tree, ()))
    for at, (path, state) in enumerate(optimizers):
        _add_optimizer(result, "optimizer" if not at else f"optimizer.{at}", optimizer(state))
        if at == 1:
            result.notes.append(
                f"several optimizers: that at {dotted(path)!r} and later ones are named 'optimizer.<n>'."
            )
    leaves = list(_leaves(tree, (), {path for path, _ in optimizers}))
    root = next((_root(path) for path, leaf in leaves if isinstance(leaf, Stored) and _root(path)), None)
    bare = any(len(path) == 1 for path, leaf in leaves if isinstance(leaf, Stored))
    for path, leaf in leaves:
        if not isinstance(leaf, Stored):
            result.add(dotted(path), leaf)
        elif not has_model:
            result.add(f"other/{dotted(path)}", leaf)
        elif root is not None and path[: len(root)] == root:
            result.add(f"model/{dotted(path[len(root) :])}", leaf)
        elif root is None and (len(path) == 1 or not bare):
            result.add(f"model/{dotted(path)}", leaf)
        else:
            result.add(f"other/{dotted(path)}", leaf)
    _share(result)
    return result


def dotted(path: Path) -> str:
    return ".".join(map(str, path))


def grown(entries: Mapping[Path, Tree], where: str) -> Tree:
    """The tree whose leaves have these paths."""
    top: dict[str | int, Tree] = {}
    for path, value in entries.items():
        node = top
        for key in path[:-1]:
            inner = node.setdefault(key, {})
            if not isinstance(inner, dict):
                raise Damaged(f"{where}: {dotted(path)!r} lies below something that is a value itself.")
            node = inner
        if not path or path[-1] in node:
            raise Damaged(f"{where}: {dotted(path)!r} is there twice.")
        node[path[-1]] = value
    return top


def _optimizers(tree: Tree, path: Path) -> Iterator[tuple[Path, dict[str | int, Tree]]]:
    if isinstance(tree, dict) and is_optimizer(tree):
        yield path, tree
    else:
        for key, item in _children(tree):
            yield from _optimizers(item, (*path, key))


def _leaves(tree: Tree, path: Path, skipped: set[Path]) -> Iterator[tuple[Path, Tree]]:
    """Tensors each by itself; plain values as large as they come, but not across a top key."""
    if path in skipped:
        return
    if isinstance(tree, dict | list) and (not path or not without_tensors(tree)):
        for key, item in _children(tree):
            yield from _leaves(item, (*path, key), skipped)
    else:
        yield path or ("value",), tree


def _children(tree: Tree) -> Iterator[tuple[str | int, Tree]]:
    if isinstance(tree, dict):
        yield from tree.items()
    elif isinstance(tree, list):
        yield from enumerate(tree)


def _root(path: Path) -> Path | None:
    """The path of the model's state dict, if this tensor is in one."""
    return next((path[: at + 1] for at, key in enumerate(path[:-1]) if key in MODELS), None)


def _add_optimizer(result: Arranged, prefix: str, state: Optimizer) -> None:
    for (key, name), value in state.values.items():
        result.add(f"{prefix}/{key}/{name}", value)
    result.objects[f"{prefix}/param_groups"] = state.groups
    for part, rest in state.rest.items():
        for path, leaf in _leaves(rest, (part,), set()):
            result.add(
                f"{prefix}/{dotted(path)}" if not isinstance(leaf, Stored) else f"other/{prefix}.{dotted(path)}", leaf
            )
    result.notes += state.notes


def _share(result: Arranged) -> None:
    """Tensors of the model that are the same bytes: one keeps them, the others become aliases."""
    first: dict[tuple[object, ...], str] = {}
    for name, stored in [*result.tensors.items()]:
        if name.startswith("model/") and any(place.nbytes for _, place in stored.parts):
            kept = first.setdefault((stored.dtype, stored.shape, stored.parts), name)
            if kept != name:
                result.aliases[name] = kept
                del result.tensors[name]
