"""Looking into a tree that a file described: the value at a path, of the type that it must have, or Damaged by name."""

from collections.abc import Mapping

from everstep.errors import Damaged
from everstep.foreign.known import size
from everstep.foreign.plain import Tree

Node = Mapping[str | int, Tree]
Shapes = dict[str, tuple[int, ...]]


def at(tree: Tree, where: str, *path: str | int) -> Tree:
    """What lies at a path."""
    for depth, key in enumerate(path):
        if isinstance(tree, list) and isinstance(key, int):
            tree = dict(enumerate(tree[key : key + 1], key)) if key >= 0 else {}
        if not isinstance(tree, dict) or key not in tree:
            raise _wrong(where, path[: depth + 1], "is missing")
        tree = tree[key]
    return tree


def node(tree: Tree, where: str, *path: str | int) -> Node:
    """A dict."""
    found = at(tree, where, *path)
    if not isinstance(found, dict):
        raise _wrong(where, path, "is no dict")
    return found


def row(tree: Tree, where: str, *path: str | int) -> list[Tree]:
    """A list; a dict with numbers as keys is one as well."""
    found = at(tree, where, *path)
    if isinstance(found, dict) and list(found) == list(range(len(found))):
        return list(found.values())
    if not isinstance(found, list):
        raise _wrong(where, path, "is no list")
    return found


def count(tree: Tree, where: str, *path: str | int) -> int:
    """A number of things."""
    found = at(tree, where, *path)
    if type(found) is not int or found < 0:
        raise _wrong(where, path, "is no count")
    return found


def shapes(tree: Tree, where: str, *path: str | int) -> Shapes:
    """Tensor shapes by name; nothing where there is None."""
    if at(tree, where, *path) is None:
        return {}
    found: Shapes = {}
    for name, shape in node(tree, where, *path).items():
        try:
            found[str(name)] = size(shape)
        except ValueError as wrong:
            raise _wrong(where, (*path, name), "is no shape") from wrong
    return found


def _wrong(where: str, path: tuple[str | int, ...], what: str) -> Damaged:
    return Damaged(
        f"{where}: {'.'.join(map(str, path))[:200]!r} {what}. "
        f"The file is damaged, or of a release that writes another form."
    )
