"""Whether what a crash left is what was promised: far enough, exactly what was written, without false alarm."""

from typing import Any

import xxhash

from everstep.errors import Damaged, EverstepError, NotARun
from everstep.log import frame, reader
from everstep.log.inventory import Inventory, survey
from everstep.recover import choose
from everstep.recover.choose import Route
from everstep.store import base, names
from everstep.store.manifest import BaseEntry
from tests.crash.truth import STATE_BYTES, Truth, after


class Wrong(Exception):
    """A broken promise."""


def judge(disk: Any, truth: Truth, *, lossy: bool = False) -> str | None:
    """What is wrong with this state, or None. On a `lossy` disk steps may be missing, but never be wrong."""
    try:
        _judge(disk, truth, lossy)
    except Wrong as wrong:
        return str(wrong)
    except EverstepError as refused:
        return None if lossy else f"refused: {type(refused).__name__}: {refused}"
    except Exception as undocumented:  # noqa: BLE001 every other exception is a finding, whatever it is
        return f"undocumented {type(undocumented).__name__}: {undocumented}"
    return None


def recovered(disk: Any, truth: Truth) -> tuple[int | None, int, bytes | None]:
    """Epoch, step and state that recovery yields."""
    inventory = survey(disk, "sim")
    return inventory.epoch, *_follow(disk, inventory, choose.routes(inventory), truth, lossy=False)


def _judge(disk: Any, truth: Truth, lossy: bool) -> None:
    try:
        inventory = survey(disk, "sim")
    except NotARun:
        if truth.floor is not None and not lossy:
            raise Wrong(f"the run is gone, epoch {truth.floor} had opened") from None
        return
    routes = choose.routes(inventory)
    step, _ = _follow(disk, inventory, routes, truth, lossy=lossy)
    if lossy:
        return
    epoch = inventory.epoch
    if (-1 if epoch is None else epoch) < (truth.floor or -1):
        raise Wrong(f"epoch {epoch} was found, {truth.floor} had opened")
    if epoch is not None and step < truth.promised[epoch]:
        raise Wrong(f"step {step} of epoch {epoch} was recovered, {truth.promised[epoch]} was acknowledged")
    if inventory.damages:
        raise Wrong(f"false alarm: {inventory.damages[0]}")
    for entry in inventory.bases:
        if _load(disk, entry) != truth.states[entry.epoch].get(entry.step):
            raise Wrong(f"base {entry.step} of epoch {entry.epoch} is not what was written")


def _follow(
    disk: Any, inventory: Inventory, routes: list[Route], truth: Truth, *, lossy: bool
) -> tuple[int, bytes | None]:
    """As `recover.recover` does: the first route whose base is whole, then every record in order."""
    for at, route in enumerate(routes):
        try:
            state = _load(disk, route.base)
        except Damaged:
            if not lossy or at + 1 == len(routes):
                raise
            continue
        return route.step, _replay(disk, inventory, route, state, truth)
    return -1, None


def _replay(disk: Any, inventory: Inventory, route: Route, state: bytes, truth: Truth) -> bytes:
    held = truth.states.get(inventory.epoch or 0, {})
    if held.get(route.base.step) != state:
        raise Wrong(f"base {route.base.step} is not the state of that step in epoch {inventory.epoch}")
    sources: dict[str, Any] = {}
    for record in route.records:
        if record.frame.kind != frame.UPDATE:
            raise Wrong(f"the route to {route.step} leads over a rebase at {record.step}")
        source = sources.setdefault(record.path, None) or disk.source(record.path)
        sources[record.path] = source
        state = after(state, bytes(reader.body(source, record)))
        if held.get(record.step) != state:
            raise Wrong(f"the record of step {record.step} is not what epoch {inventory.epoch} wrote")
    return state


def _load(disk: Any, entry: BaseEntry) -> bytes:
    """The state a base holds, proved as `recover.load` proves it."""
    index = base.load(disk, 0, entry)
    stored = index.tensors[0]
    data = disk.source(names.tensors(0, entry.step, entry.epoch)).read(index.header_bytes, stored.tensor.nbytes)
    if xxhash.xxh3_128_hexdigest(data) != stored.digest:
        raise Damaged("tensor fails its digest")
    return bytes(data[:STATE_BYTES])
