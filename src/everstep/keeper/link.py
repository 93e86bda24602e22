"""The trainer's side of the keeper: hands steps over through the ring, and starts another keeper when one has died.

Nothing here waits longer than it is told to. What the keeper says of the run is in the ring's words, its texts aside.
"""

import logging
import os
import threading
from collections.abc import Callable

import msgspec

from everstep.errors import EverstepError, Fenced, StoreFailed
from everstep.keeper.caller import ANSWER_SECONDS, Caller
from everstep.keeper.channel import Gone
from everstep.keeper.health import STATES, Health, State
from everstep.keeper.messages import Anew, Begin, Close, Done, Look, Report, Share
from everstep.keeper.successor import Successor
from everstep.keeper.warned import Warnings
from everstep.ring import held as memory_tier
from everstep.ring import ring as words
from everstep.ring.areas import Area, Areas, Pins, pin_all
from everstep.ring.held import Left
from everstep.ring.pen import Extent, Pen
from everstep.ring.ring import STATE, Ring
from everstep.ring.tally import Tally
from everstep.ring.watch import watch
from everstep.settings import Settings
from everstep.store.memory import Block
from everstep.types import Bytes

LOGGER = logging.getLogger("everstep")
LOOK_SECONDS = 2.0
ANEW_SECONDS = 300.0
TAKEN_OVER = "another process took this run over. What was acknowledged before is kept; stop this process."


class Link:
    """From `everstep.open` to `close`, whichever keeper is at the other end."""

    def __init__(self, path: str, run: str, rank: int, *, opened: str, settings: Settings) -> None:
        self._path, self._rank = path, rank
        self._settings = settings
        self._warnings = Warnings()
        self._successor: Successor | None = None
        self._safe = -1
        self._ended: Health | None = None
        self._pinning: threading.Thread | None = None
        self._missed_at = -1
        self._caller = Caller(path, run, rank, opened=opened)
        try:
            welcome, blocks = self._caller.hello(take_over=settings.take_over)
        except BaseException:
            self._caller.hang_up()
            raise
        self._epoch = welcome.epoch
        self._left = dict(zip(welcome.blocks, map(Block, blocks), strict=True))
        self.left_bytes = sum(block.nbytes for block in self._left.values())
        self._ring: Ring | None = None
        self._pen: Pen | None = None
        self._areas: Areas | None = None
        self._tally: Tally | None = None

    # Beginning.

    def left(self) -> Left | None:
        """What a trainer before us left in memory, if it can be restored from there."""
        return memory_tier.left(self._left)

    def begin(self, step: int, epoch: int | None, *, memory: bool, ring: Callable[[], Ring], pins: Pins | None) -> bool:
        """Let the log go on after `step`. False when only memory holds that step: then a base is due.

        `pins` makes memory fit for a device. A new ring is pinned at once, one that was left to us in the background:
        who resumes from memory is in a hurry.
        """
        if memory:
            self._ring = Ring(self._left[-1])
            memory_tier.cut(self._ring, step)
        else:
            self._left, self._ring = {}, ring()
            self._request(Share(-1), [self._ring.block.descriptor])
        self._ring.say(words.W_COMMITTED, step + 1)
        self._pen = Pen(self._ring)
        self._areas = Areas(self._ring, self._share, pins)
        self._tally = Tally(self._pen)
        if memory:
            self._adopt(pins)
        elif pins is not None:
            pins.pin(self._ring.block)
        self._left = {}
        told = self._settings
        asked = Begin(step, epoch, memory, told.segment_bytes, told.retain_bytes_max, told.linger_seconds)
        held = self._request(asked).held
        again = msgspec.structs.replace(asked, epoch=self.epoch, memory=True, revived=True)
        self._successor = Successor(self._caller, again, self._shared, self.warn)
        return held

    def anew(self, *, hurry: bool) -> None:
        """Write in another epoch than a trainer before us: its log does not go on as it is. Unless we are in a `hurry`
        the disk gets first what is still on its way there, of all ranks on this host."""
        left, seconds = self.left(), 0.0 if hurry else ANEW_SECONDS
        if left is not None and not hurry and left[2].step >= left[0].word(words.W_ACKNOWLEDGED):
            self.warn(f"step {left[2].step} of the trainer before goes to the disk first, for at most {seconds:.0f} s")
        self._epoch = self._request(Anew(seconds), seconds=seconds).epoch

    def _request(self, message: Share | Begin | Anew, blocks: list[int] | None = None, seconds: float = 0.0) -> Done:
        try:
            return self._caller.request(message, blocks, seconds)
        except Gone as died:
            raise StoreFailed(f"{self._path}: its keeper died meanwhile. Nothing was changed; open it again.") from died

    def _adopt(self, pins: Pins | None) -> None:
        """Go on in the ring that another trainer began."""
        ring, areas, found = self.ring, self.areas, memory_tier.held(self.ring)
        assert found is not None
        for number, block in self._left.items():
            if number >= 0:
                areas.adopt(number, block, found.state.sequence if number == found.state.area else -1)
        if pins is not None:
            blocks = [ring.block, *(block for number, block in self._left.items() if number >= 0)]
            self._pinning = threading.Thread(target=pin_all, args=(pins, blocks), name="everstep-pin", daemon=True)
            self._pinning.start()
        self.tally.adopt(found.state.sequence, found.step, {entry.step: entry.sequence for entry in found.records})
        ring.say(words.W_MISSED, 0)

    def _share(self, area: int, block: Block) -> bool:
        """Whether the keeper has this area. Nothing is waited for; has it died, its successor is told."""
        try:
            starting = self._successor is not None and self._successor.starting
            return not starting and self._caller.did(Share(area), [block.descriptor])
        except Gone:
            self.poke()
            return False

    # What the training loop calls.

    @property
    def epoch(self) -> int:
        """The one that is written in now."""
        later = None if self._successor is None else self._successor.epoch
        return self._epoch if later is None else later

    @property
    def ring(self) -> Ring:
        assert self._ring is not None
        return self._ring

    @property
    def pen(self) -> Pen:
        assert self._pen is not None
        return self._pen

    @property
    def areas(self) -> Areas:
        assert self._areas is not None
        return self._areas

    @property
    def tally(self) -> Tally:
        assert self._tally is not None
        return self._tally

    def ready(self, seconds: float) -> bool:
        """Whether the shared memory is fit for copies, after at most `seconds`."""
        if self._pinning is not None:
            self._pinning.join(seconds)
            if self._pinning.is_alive():
                return False
            self._pinning = None
        return True

    def wait_for_room(self, nbytes: int, seconds: float) -> bool:
        """Whether the ring has room, after at most `seconds`; at once where waiting is no use: a full disk, say."""
        known = lambda: self.pen.room(nbytes) or self.state != "ok" or self.tally.stuck()  # noqa: E731
        watch(known, seconds)
        return self.pen.room(nbytes)

    def put_record(self, kind: int, step: int, head: list[Bytes], gradients: list[Extent], tail: list[Bytes]) -> int:
        """A record whose gradients lie in the ring already; its entry, or -1 when the rest finds no room."""
        extents = [self.pen.put(head), *gradients, *([self.pen.put(tail)] if tail else [])]
        if None in extents:
            return -1
        sequence = self.pen.write(kind, step, [extent for extent in extents if extent is not None])
        self.tally.written(sequence, kind, step, step)
        return sequence

    def put_state(self, step: int, low: int, area: Area, pieces: list[list[Bytes]], *, to_disk: bool) -> int:
        """The entry of a state that lies in `area`, or -1 when there is no room for it."""
        extents = [self.pen.put(piece) for piece in pieces]
        if None in extents:
            self.pen.abandon()
            return -1
        held = [extent for extent in extents if extent is not None]
        if to_disk:
            self.ring.say(words.W_ASSIGNED + area.number, self.pen.next + 1)
        sequence = self.pen.write(STATE, step, held, area=area.number, low=low)
        area.sequence = sequence
        self.tally.written(sequence, STATE, step, low)
        return sequence

    def void(self, sequence: int) -> None:
        """Give up an entry that was begun."""
        self.areas.emptied(sequence)
        self.pen.void(sequence)
        self.tally.void(sequence)

    def committed(self, step: int) -> None:
        """A step was handed over, or given up: its number is used."""
        self.ring.say(words.W_COMMITTED, step + 1)

    def poke(self) -> None:
        """Tell the keeper that there is something new. Has it died, another is started beside training."""
        self.settle()
        if self._successor is not None:
            self._successor.look()

    def attended(self, seconds: float | None) -> bool:
        """Whether a keeper listens, after at most `seconds`; a dead one's successor is waited for."""
        self.settle()
        return self._successor is not None and self._successor.attends(seconds)

    def skip(self, step: int, why: str) -> None:
        """Note that a step was not recorded. The first of a row says why."""
        first = self._missed_at != step - 1
        self._missed_at = step
        self.ring.say(words.W_MISSED, self.ring.word(words.W_MISSED) + 1)
        if first:
            self.warn(f"steps from {step} on were not recorded: {why}")

    def warn(self, text: str, kind: str = "") -> None:
        """Leave a word in `health`, and in the program's log the first time that one of its kind is said."""
        self._warnings.say(text, kind)

    # How it is.

    @property
    def state(self) -> State:
        return STATES[self.ring.word(words.W_STATE)]

    @property
    def acknowledged(self) -> int:
        return self.ring.word(words.W_ACKNOWLEDGED) - 1

    @property
    def memory(self) -> int:
        """The newest step that survives this process: without a memory tier what the disk has, since nobody knows
        whether it will take the rest. While there is no keeper no further step does."""
        held = self.settle()
        if self.areas.count > 1 and (self._successor is None or self._successor.serves):
            self._safe = held
        return max(self._safe, self.acknowledged)

    @property
    def lost(self) -> bool:
        """Whether nobody listens: the keeper died, and its successor does not have everything yet."""
        return self._successor is None or self._successor.lost

    @property
    def wants_base(self) -> bool:
        return bool(self.ring.word(words.W_WANTS_BASE))

    @property
    def base_in_hand(self) -> bool:
        """Whether the keeper still writes the base before."""
        return any(self.ring.busy(number) for number in range(words.AREAS_MAX))

    def wait_for_base(self, seconds: float | None, *, patiently: bool = False, emptied: bool = False) -> bool:
        """Whether the base before is written, and the ring `emptied`, after at most `seconds`; while the disk refuses
        writes nothing is waited for, unless `patiently`, and never for a keeper that died."""
        going = ("ok", "degraded" if patiently else "ok")
        behind: Callable[[], bool] = lambda: self.base_in_hand or (emptied and self.pen.unread_bytes > 0)  # noqa: E731
        return watch(lambda: not behind() or self.state not in going or self.lost, seconds) and not behind()

    def refuse_if_fenced(self) -> None:
        """Raise Fenced once another process owns the run: what is trained here from now on belongs to nobody."""
        if self.state == "fenced":
            raise Fenced(f"epoch {self.epoch} of writer {self._rank} has ended: {TAKEN_OVER}")

    def wait(self, step: int, seconds: float | None) -> bool:
        """Whether `step` is on disk, after at most `seconds`; at once when it never will be, or the keeper died."""
        ended = ("fenced", "failed", "closed")
        watch(lambda: self.acknowledged >= step or self.state in ended or self.lost, seconds)
        return self.acknowledged >= step

    @property
    def health(self) -> Health:
        """The keeper's view with ours; ours alone while there is no keeper."""
        here = self._here()
        if self._ended is not None:
            return self._ended
        try:
            told = self._caller.ask(Look(), LOOK_SECONDS)
        except (Gone, EverstepError):
            return here
        if not isinstance(told, Report) or told.pid != os.getpid():
            return here
        return msgspec.structs.replace(
            told.health, state=here.state, committed=here.committed, memory=max(here.memory, told.health.memory),
            acknowledged=here.acknowledged, not_recorded=here.not_recorded,
            warnings=(*self._warnings.last(), *told.health.warnings),
        )  # fmt: skip

    def _here(self) -> Health:
        ring = self.ring
        return Health(
            self.state, ring.word(words.W_COMMITTED) - 1, self.acknowledged, self.memory, self.pen.used_bytes,
            ring.word(words.W_MISSED), ring.word(words.W_DROPPED), ring.word(words.W_BASES), None,
            self._warnings.last(),
        )  # fmt: skip

    def settle(self) -> int:
        """Count what has become whole since the last look; the newest step that memory holds."""
        return self.tally.look(keeps=self.areas.count > 1)

    # Ending.

    def end(self, seconds: float) -> bool:
        """Whether the keeper has written what is committed, for at most `seconds`, and this conversation is over."""
        try:
            told = self._caller.ask(Close(seconds), seconds + ANSWER_SECONDS)
        except Gone:
            return False
        if isinstance(told, Report) and self._ring is not None:
            self._ended = msgspec.structs.replace(told.health, warnings=(*self._warnings.last(), *told.health.warnings))
        return True

    def close(self, *, ended: bool) -> Health | None:
        """Let go of line and memory. How it ended, once it had begun."""
        health = self._ended
        if not ended and self._tally is not None and self.state not in ("fenced", "closed"):
            why = "its keeper died" if self.lost else "its keeper does not answer"
            LOGGER.warning("%s is left as it is: %s", self._path, why)
            health = msgspec.structs.replace(self._here(), error=why)
        self.drop()
        return health

    def _shared(self) -> dict[int, int]:
        """What a keeper is to have: the descriptors of ring and areas."""
        areas = {number: self.areas[number].block.descriptor for number in self.areas.numbers}
        return {-1: self.ring.block.descriptor, **areas}

    def drop(self) -> None:
        """Let go of line and blocks; in a forked child they are the parent's."""
        self._caller.hang_up()
        for block in self._left.values():
            block.close()
        if self._ring is not None:
            self._ring.block.close()
        for number in self.areas.numbers if self._areas is not None else ():
            self.areas[number].block.close()
