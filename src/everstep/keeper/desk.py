"""One writer's place at the keeper: its lease, its log, and the memory it shares. It outlives the trainer."""

import contextlib
import logging
import os
import threading
import time
from datetime import UTC, datetime

import msgspec

from everstep.errors import Damaged, RunInUse
from everstep.keeper.channel import alive
from everstep.keeper.feed import Feed
from everstep.keeper.health import STATES, Health
from everstep.keeper.keeper import Keeper
from everstep.keeper.messages import Begin, Hello
from everstep.log import lease, term
from everstep.log.inventory import Inventory, survey
from everstep.ring import ring as words
from everstep.ring.held import following, held
from everstep.ring.ring import Ring
from everstep.store import cohort as cohorts
from everstep.store import names, prune
from everstep.store.disk import Disk
from everstep.store.memory import Block

LOGGER = logging.getLogger("everstep")


class Desk:
    """From a trainer's `welcome` to `close`; another trainer may sit down at it in between."""

    def __init__(self, disk: Disk, run: str, path: str, rank: int) -> None:
        self.rank = rank
        self.pid = 0
        self.seat = 0
        """Who sits here, by number: whoever sat here before has nothing to say any more."""
        self.linger_seconds = 0.0
        self._trainer = ""
        self._disk, self._run, self._path = disk, run, path
        self._lease: lease.Lease | None = None
        self._keeper: Keeper | None = None
        self._feed: Feed | None = None
        self._peers: cohorts.Peers | None = None
        self._ring: Ring | None = None
        self._areas: dict[int, Block] = {}
        self._epoch, self._closing = -1, False  # the one that the steps in memory were recorded in
        self._lock = threading.RLock()

    # What a conversation asks for.

    def welcome(self, hello: Hello) -> tuple[int, int, dict[int, Block]]:
        """Give the desk to this trainer: its seat, the epoch it writes in, and the memory that one before it left."""
        with self._lock:
            if self.pid and alive(self.pid) and self._trainer != hello.trainer:
                if not hello.take_over:
                    raise RunInUse(
                        f"{names.lease(self.rank)}: process {self.pid} on {os.uname().nodename!r} is writing this run. "
                        "Nothing was changed. Wait for it, end it, or fence it off with Settings(take_over=True)."
                    )
                self._fence()  # the old trainer may still write into its ring: nothing of that is used again
            elif self._lease is not None and self._lease.ended:
                self._fence()
            if self._lease is None:
                self._lease = lease.take(
                    self._disk, self._run, self.rank, opened=_now(), take_over=hello.take_over, pid=hello.pid
                )
            if self._closing:  # its trainer is gone, or gave it up: nobody goes on in a term that is just ending
                self._end_term()
            self._forget_what_is_past(self._lease)
            self._lease.say(hello.pid, left=False)
            self.pid, self._trainer = hello.pid, hello.trainer
            self.seat += 1
            blocks = dict(self._areas)
            if self._ring is not None:
                self._settle()
                blocks[-1] = self._ring.block
            return self.seat, self._lease.book.manifest.epoch, blocks

    def share(self, area: int, block: Block) -> None:
        """Memory that the trainer made: the ring, or an area."""
        with self._lock:
            if area >= words.AREAS_MAX:
                raise Damaged(f"area {area} cannot be.")
            if area >= 0:
                if area in self._areas:
                    self._areas[area].close()
                self._areas[area] = block
            elif self._ring is None or not self._ring.block.same_as(block):
                self._end_term()
                self._forget_memory()
                self._ring = Ring(block)
            else:
                block.close()  # the trainer called again; we have its ring

    def begin(self, asked: Begin) -> bool:
        """Open the log after the step the trainer begins with. False when the disk does not hold that step."""
        with self._lock:
            assert self._ring is not None
            assert self._lease is not None
            self.linger_seconds = asked.linger_seconds
            logged = self._logged if asked.memory else None
            if logged is None or logged > asked.step:  # ranks that train together go on where all of them are
                return self._open(self._unused(), self._ring, asked)
            return logged == asked.step

    @property
    def _logged(self) -> int | None:
        """How far the log goes that is being written here, with what is on its way; None when there is none."""
        keeper, feed = self._keeper, self._feed
        if keeper is None or feed is None or keeper.glance()[0] not in ("ok", "degraded"):
            return None
        return feed.newest

    def anew(self, seconds: float) -> int:
        """An epoch of its own for who does not go on with what was left here. The disk gets that first, for at most
        `seconds`, unless it refuses."""
        if seconds:
            self._write_out(self.seat, time.monotonic() + seconds, patiently=False)
        with self._lock:
            return self._unused().book.manifest.epoch

    def pump(self) -> bool:
        """Take what is new in the ring. True while there is something that is not whole yet."""
        with self._lock:
            return self._feed.pump() if self._feed is not None else False

    def close(self, seat: int, seconds: float) -> Health:
        """The trainer is done: write what is committed, then forget it, unless the disk lacks a step that memory has,
        or another sits here by then. How it ended."""
        with self._lock:
            self._closing = True
            if self._feed is not None:
                self._feed.pump()
                self._feed.catch_up(seconds)
        if (keeper := self._keeper) is not None:
            keeper.close(seconds)
        with self._lock:
            self._closing = False
            ended = self.health
            if self.seat != seat:
                return ended
            self._say()
            self._let_go()
            self.pid = 0
            if ended.state == "fenced" or ended.memory <= ended.acknowledged:
                self._forget_memory()
            self._keeper = self._feed = None
            return ended

    @property
    def health(self) -> Health:
        ring, keeper = self._ring, self._keeper
        nothing = Health("closed", -1, -1, -1, 0, 0, 0, 0, None, ())
        if ring is None:
            return nothing
        disk = ring.word(words.W_ACKNOWLEDGED) - 1
        health = msgspec.structs.replace(nothing, acknowledged=disk) if keeper is None else keeper.health
        memory = None
        with contextlib.suppress(Damaged):
            memory = held(ring)
        return msgspec.structs.replace(
            health,
            memory=max(health.acknowledged, -1 if memory is None else memory.step),
            committed=ring.word(words.W_COMMITTED) - 1,
            not_recorded=ring.word(words.W_MISSED),
            dropped=ring.word(words.W_DROPPED),
        )

    # The trainer is gone.

    def orphaned(self, seat: int) -> bool:
        """Make durable what the dead trainer left. False as soon as another sits here, or when there is no memory."""
        with self._lock:
            if self.seat != seat:
                return False
            if self._lease is not None:
                self._lease.say(self.pid, left=True)
            self._settle()
        self._write_out(seat, time.monotonic() + max(1.0, self.linger_seconds), patiently=True)
        with self._lock:
            if self.seat != seat:
                return False
            self._end_term()
            self._let_go()  # so that another host may go on; the memory stays
            self.pid = 0
            return self._ring is not None

    def _write_out(self, seat: int, deadline: float, *, patiently: bool) -> None:
        """Give the disk all that memory holds, while nobody else sits here; not with the lock: one may come."""
        self._written(seat, deadline, patiently=patiently)
        with self._lock:
            if self.seat == seat and self._feed is not None:
                self._feed.catch_up(0.0)
        self._written(seat, deadline, patiently=patiently)

    def _written(self, seat: int, deadline: float, *, patiently: bool) -> None:
        """Wait until the disk has what it was given; while it refuses writes only if `patiently`."""
        while (keeper := self._keeper) is not None and self.seat == seat and time.monotonic() < deadline:
            if keeper.idle(0.1) or not (patiently or keeper.glance()[0] == "ok"):
                return

    @property
    def owes(self) -> bool:
        """Whether what a dead trainer left here is on its way to the disk."""
        keeper = self._keeper
        return keeper is not None and keeper.glance()[0] == "ok" and not (self.pid and alive(self.pid))

    def forget(self, seat: int) -> bool:
        """Nobody came for the memory in time; whether there was any. Somebody may be coming just now."""
        with self._lock:
            forgets = self.seat == seat and self._ring is not None
            if forgets:
                self._forget_memory()
            return forgets

    @property
    def holds_memory(self) -> bool:
        return self._ring is not None

    # Terms, ends.

    def _open(self, ours: lease.Lease, ring: Ring, asked: Begin) -> bool:
        inventory = survey(self._disk, self._path, rank=self.rank, epoch=asked.epoch)
        if asked.revived and inventory.epoch is not None:  # the keeper before may itself have had a dead one's place
            newest = prune.tip(inventory.manifest, inventory.epoch)
            inventory = survey(self._disk, self._path, rank=self.rank, epoch=newest)
        parent = inventory.epoch if asked.memory else asked.epoch
        step = _reached(inventory) if asked.revived else asked.step
        on_disk = parent is not None and any(first <= step <= end for first, end in inventory.spans())
        before = -1 if parent is None else step if on_disk else min(inventory.newest, step)
        last = inventory.records.get(step)
        writer = term.begin(
            self._disk, ours.book, inventory.manifest, inventory.segments, parent=parent, step=step,
            chain=last.frame.chain if last is not None else 0, opened=_now(), segment_bytes=asked.segment_bytes,
            acknowledged=before, pid=self.pid,
        )  # fmt: skip
        self._epoch = ours.book.manifest.epoch
        self._keeper = Keeper(
            self._disk, ours.book, writer, retain_bytes_max=asked.retain_bytes_max,
            noted=self._say, floor=self._floor,
        )  # fmt: skip
        self._peers = None
        past = () if parent is None else [(first, min(end, step)) for first, end in inventory.spans() if first <= step]
        self._keeper.start(step, based=on_disk, spans=past)
        first = following(ring, step) if asked.revived else ring.word(words.W_HEAD)
        for area in range(words.AREAS_MAX):  # what another keeper was writing is lost with it, and asked for again
            if ring.word(words.W_ASSIGNED + area) <= first:  # what is still to come keeps its place
                ring.say(words.W_DONE + area, ring.word(words.W_ASSIGNED + area))
        self._feed = Feed(ring, self._areas, self._keeper, first, step)
        if asked.revived:
            ring.say(words.W_WANTS_BASE, 1)
            if first < ring.word(words.W_HEAD) and ring.read(first).step > step + 1:
                self._feed.mind_the_gap()
        self._say()
        return on_disk or (parent is None and not asked.memory)

    def _floor(self) -> int:
        """The newest step that all writers of the cohort have on disk; while that cannot be told, nothing is to go."""
        try:
            if self._peers is None:
                known = cohorts.load_all(self._disk)
                self._peers = cohorts.Peers(self._disk, known[0].epochs if known else ())
        except Damaged:
            return -1
        return self._peers.acknowledged

    def _settle(self) -> None:
        """The trainer is dead: what it had not finished never was."""
        ring = self._ring
        if ring is None:
            return
        if self._feed is not None:
            self._feed.pump()
        head = max(ring.word(words.W_KEEP), ring.word(words.W_RELEASED))
        while head < ring.word(words.W_HEAD) and ring.whole(head):
            head += 1
        ring.say(words.W_HEAD, head)
        for area in range(words.AREAS_MAX):
            if ring.word(words.W_ASSIGNED + area) > head:
                ring.say(words.W_DONE + area, ring.word(words.W_ASSIGNED + area))

    def _fence(self) -> None:
        if self._keeper is not None:
            self._keeper.fence("another process took this run over. What was acknowledged before is kept; stop here.")
        self._let_go()
        self._forget_memory()

    def _forget_what_is_past(self, ours: lease.Lease) -> None:
        """The run may have gone on elsewhere, on another host, while this one held what a dead trainer had left."""
        later = [term.epoch for term in ours.book.manifest.terms if term.from_step is not None]
        if self._ring is not None and max(later, default=-1) > self._epoch:
            LOGGER.warning("%s: what was left in memory here is past, the run has gone on elsewhere", self._path)
            self._forget_memory()

    def _unused(self) -> lease.Lease:
        """Our lease, in an epoch that nothing was recorded in yet: another one, if this one's term has begun."""
        assert self._lease is not None
        self._end_term()
        if self._lease.book.manifest.state != "opening":
            self._let_go()
            self._lease = lease.take(self._disk, self._run, self.rank, opened=_now(), take_over=False, pid=self.pid)
        return self._lease

    def _end_term(self) -> None:
        if self._keeper is not None:
            self._keeper.close(0.0)
            self._say()
            self._keeper = self._feed = None

    def _let_go(self) -> None:
        if self._lease is not None:
            self._lease.release()
            self._lease = None

    def _forget_memory(self) -> None:
        for block in self._areas.values():
            block.close()
        if self._ring is not None:
            self._ring.block.close()
        self._keeper = self._feed = self._ring = None
        self._areas = {}

    def _say(self) -> None:
        """Leave for the trainer what it looks at after every step."""
        ring, keeper = self._ring, self._keeper
        if ring is not None and keeper is not None:
            state, acknowledged, bases = keeper.glance()
            ring.say(words.W_ACKNOWLEDGED, acknowledged + 1)
            ring.say(words.W_BASES, bases)
            ring.say(words.W_STATE, STATES.index(state))


def _reached(inventory: Inventory) -> int:
    """How far the log of this branch goes."""
    return max([*inventory.records, *(entry.step for entry in inventory.bases)], default=0)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
