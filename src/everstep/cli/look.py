"""Opening a run to look at it, and the heads of its records. Reads only; a running trainer is not disturbed."""

import contextlib
from collections.abc import Iterable, Iterator
from typing import Any

from everstep.codec import body
from everstep.errors import Damaged
from everstep.log.inventory import Inventory, survey
from everstep.log.reader import Located
from everstep.recover.cohort import lasting
from everstep.store.base import Index
from everstep.store.disk import Disk, LocalDisk, existing
from everstep.url import split_url

Hyper = dict[str, list[dict[str, Any]]]
"""Hyper-parameters by optimizer and group, as trees."""


@contextlib.contextmanager
def opened(url: str) -> Iterator[tuple[LocalDisk, str, int | None]]:
    """The run's directory, its path, and the epoch that the url asks for."""
    path, epoch = split_url(url)
    disk = existing(path)
    try:
        yield disk, path, epoch
    finally:
        disk.release()


def branch(disk: Disk, path: str, epoch: int | None) -> Inventory:
    """Writer 0's, as the url asks for it, or the newest. One that was begun and holds nothing yet is as if it was not:
    resuming goes on from the one before."""
    found = survey(disk, path, epoch=epoch)
    if epoch is None and not found.spans() and not found.damages and (before := lasting(disk, path)) is not None:
        return before[1][0]
    return found


def heads(disk: Disk, records: Iterable[Located]) -> Iterator[tuple[Located, body.Head]]:
    """What the records say. Only their heads are read, not the gradients, so nothing is proved: `verify` does that."""
    path, source = "", None
    try:
        for located in records:
            if source is None or located.path != path:
                if source is not None:
                    source.close()
                path, source = located.path, disk.source(located.path)
            room = located.frame.body_bytes
            name = f"record of step {located.step} in {located.path}"
            try:
                length = body.LENGTH.unpack(source.read(located.offset, body.LENGTH.size))[0]
                data = source.read(located.offset, min(room, body.LENGTH.size + length))
            except (EOFError, OSError) as bad:
                raise Damaged(f"{name}: cannot be read ({bad}).", intact=located.step - 1) from bad
            yield located, body.parse_head(memoryview(data), name=name)
    finally:
        if source is not None:
            source.close()


def hyper_of(index: Index) -> Hyper:
    """The hyper-parameters as a base holds them."""
    return {entry.key: [_group(group.hyper) for group in entry.groups] for entry in index.content.optimizers}


def fold(known: Hyper, head: body.Head) -> list[tuple[str, int, str, Any, Any]]:
    """Bring `known` to the end of a record. Returns what changed: optimizer, group, name, old value, new value."""
    before = {key: [dict(group) for group in groups] for key, groups in known.items()}
    said = [(update.optimizer, update.groups) for update in head.updates if update.groups is not None]
    for key, groups in [*said, *head.groups.items()]:
        known[key] = [_group(group) for group in groups]
    changes = []
    for key, groups in known.items():
        old = before.get(key, [])
        for at, group in enumerate(groups):
            was = old[at] if at < len(old) else {}
            changes += [(key, at, name, was.get(name), now) for name, now in group.items() if was.get(name) != now]
    return changes


def _group(tree: Any) -> dict[str, Any]:
    return tree if isinstance(tree, dict) else {"?": tree}
