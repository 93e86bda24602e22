"""A training program without torch: the real lease, term, writer and keeper, driven on one thread.

Its state is 32 bytes that every step's body changes, so a recovered state proves every record it was made from.
"""

import random
import threading
from types import SimpleNamespace
from typing import Any

import xxhash

from everstep.keeper import keeper as keeper_module
from everstep.keeper.buffer import Item
from everstep.keeper.keeper import Keeper
from everstep.log import frame, lease, term
from everstep.log.inventory import survey
from everstep.log.writer import Record
from everstep.recover import choose
from everstep.store import base
from everstep.store.disk import Disk
from everstep.store.manifest import BaseEntry, Book, Identity, load_identity, start_identity
from everstep.types import Tensor, whole
from tests.crash import truth as truth_module
from tests.crash.truth import Truth

RUN = "5eed" * 8
SEGMENT_BYTES = 2600
RETAIN_BYTES = 9000
TENSOR_BYTES = 672
NOTHING = base.Content((), {}, (), {}, "", "", {})
START = truth_module.anew(b"start")


class StateCopy:
    """`Snapshot` of the 32 bytes, repeated so that a base spans sectors."""

    def __init__(self, step: int, state: bytes) -> None:
        self.step = step
        self._state = state

    def write(self, disk: Disk, book: Book) -> BaseEntry:
        data = self._state * (TENSOR_BYTES // len(self._state))
        tensor = Tensor("model/w", "U8", (len(data),), whole((len(data),)), len(data))
        digest = xxhash.xxh3_128_hexdigest(data)
        manifest = book.manifest
        return base.write(
            disk, manifest.run, manifest.writer, self.step, manifest.epoch, [(tensor, data, digest)], NOTHING
        )

    def release(self) -> None:
        pass


class Session:
    """One process's part of a run, from resume to close. `step=` goes back to an older step: a new branch."""

    def __init__(
        self, disk: Any, truth: Truth, rng: random.Random, *, step: int | None = None, take_over: bool = False,
        threads: bool = False,
    ) -> None:  # fmt: skip
        self._disk, self._truth, self._rng = disk, truth, rng
        if "run.json" not in disk.names(""):
            start_identity(disk, Identity(RUN, "now", "0"))
        identity = load_identity(disk, "sim")
        self._lease = lease.take(disk, identity.run, 0, opened="now", take_over=take_over)
        self.epoch = self._lease.book.manifest.epoch
        self.keeper: Keeper | None = None
        inventory = survey(disk, "sim")
        routes = choose.routes(inventory, step)
        self.step = routes[0].step if routes else 0
        parent = inventory.epoch if routes else None
        truth.opening(self.epoch, parent, self.step)
        self.state = truth.states[self.epoch][self.step] if routes else START
        truth.states[self.epoch][self.step] = self.state
        last = inventory.records.get(self.step)
        writer = begin(
            disk, self._lease.book, inventory, parent=parent, step=self.step,
            chain=last.frame.chain if last is not None else 0, opened="now", segment_bytes=SEGMENT_BYTES,
        )  # fmt: skip
        truth.floor = self.epoch
        keeper = Keeper(disk, self._lease.book, writer, retain_bytes_max=RETAIN_BYTES)
        if threads:
            keeper.start(self.step, based=bool(routes))
        else:
            start_without_threads(keeper, self.step, based=bool(routes))
        self.keeper = keeper
        if not routes:
            keeper.put_base(StateCopy(self.step, self.state))
            if not threads:
                self.write_bases()

    # What a training loop does.

    def commit(self, *, with_base: bool = False) -> None:
        """Take one step and hand it over."""
        body = self._body()
        self._advance(self.step + 1, truth_module.after(self.state, body))
        snapshot = StateCopy(self.step, self.state) if with_base else None
        self._keeper().put(_item(frame.UPDATE, self.step, body), snapshot)

    def rebase(self, *, skipped: int) -> None:
        """Lose some steps, then take one that only a base can hold."""
        self.step += skipped
        body = self._body()
        self._advance(self.step + 1, truth_module.anew(body))
        self._keeper().put(_item(frame.REBASE, self.step, body), StateCopy(self.step, self.state))

    def close(self) -> None:
        self._keeper().close(0.0)
        self._lease.release()

    # What the keeper's threads do, when there are none.

    def write_records(self) -> None:
        keeper = self._keeper()
        keeper._shared.closing = True  # so that the loop ends when nothing waits
        keeper._write_records()
        keeper._shared.closing = False

    def write_bases(self) -> None:
        keeper = self._keeper()
        keeper._shared.closing = True
        keeper._write_bases()
        keeper._shared.closing = False

    def note(self) -> None:
        """Tell the observer what is acknowledged now."""
        if self.keeper is not None:
            self._truth.acknowledged(self.epoch, self.keeper.acknowledged)

    def _keeper(self) -> Keeper:
        assert self.keeper is not None
        return self.keeper

    def _advance(self, step: int, state: bytes) -> None:
        self.step, self.state = step, state
        self._truth.states[self.epoch][step] = state

    def _body(self) -> bytes:
        size = self._rng.choice((1, 40, 200, 500, 700, 1100))
        return bytes(size) if self._rng.random() < 0.1 else self._rng.randbytes(size)


def begin(disk: Any, book: Book, inventory: Any, **options: Any) -> Any:
    return term.begin(disk, book, inventory.manifest, inventory.segments, **options)


def start_without_threads(keeper: Keeper, step: int, *, based: bool) -> None:
    """`Keeper.start`, but its threads never run: the caller does their work, in an order of its own."""
    real = keeper_module.threading
    keeper_module.threading = SimpleNamespace(Thread=_Idle, Condition=threading.Condition, Lock=threading.Lock)  # type: ignore[assignment]
    try:
        keeper.start(step, based=based)
    finally:
        keeper_module.threading = real


class _Idle:
    def __init__(self, **_options: Any) -> None:
        pass

    def start(self) -> None:
        pass

    def join(self, timeout: float) -> None:
        pass

    def is_alive(self) -> bool:
        return False


def _item(kind: int, step: int, body: bytes) -> Item:
    cut = len(body) // 3
    return Item(Record(kind, step, [body[:cut], body[cut:]]), len(body), lambda: None)
