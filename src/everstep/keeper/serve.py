"""The keeper's process: one per run and host. Listens for trainers and for those who look, and ends when it is idle.

Every caller gets a thread of its own. When a trainer ends without a word, its desk stays: first what it left is made
durable, then the memory waits for the next trainer, for `linger_seconds` at most.
"""

import contextlib
import logging
import os
import signal
import threading
import time
from collections.abc import Callable
from typing import TypeGuard

from everstep import __version__
from everstep.errors import Damaged, EverstepError, Fenced, RunInUse, StoreFailed
from everstep.keeper import channel
from everstep.keeper.channel import Gone, Line
from everstep.keeper.desk import Desk
from everstep.keeper.messages import (
    Anew,
    Begin,
    Close,
    Done,
    Forget,
    Hello,
    Look,
    Message,
    Poke,
    Refused,
    Report,
    Share,
    Welcome,
)
from everstep.ring.watch import watch
from everstep.store import rendezvous
from everstep.store.disk import Disk
from everstep.store.memory import Block

LOGGER = logging.getLogger("everstep")
FIRST_CALL_SECONDS = 30.0
WHOLE_SECONDS = 0.001
"""How often an entry is looked at that the device has not finished copying: it cannot wake anyone."""
IDLE_SECONDS = 1.0
RANKS_MAX = 4096


Seated = tuple[Desk, int]
"""A desk, and the number of who sits there."""


def _sits(seated: Seated | None) -> TypeGuard[Seated]:
    return seated is not None and seated[0].seat == seated[1]


class Keeping:
    """The desks of one run on this host."""

    def __init__(self, path: str, run: str, disk: Disk) -> None:
        self._path, self._run, self._disk = path, run, disk
        self._name = rendezvous.name_of(run, path)
        self._desks: dict[int, Desk] = {}
        self._lock = threading.Lock()
        self._trainers = 0
        self._called = False
        self._over = False
        self._ending = threading.Event()
        self._began = time.monotonic()

    def serve(self, ready: Callable[[], None]) -> None:
        """Answer until nobody needs this keeper any more."""
        owned = rendezvous.own(self._name)
        if owned is None:  # another keeper is there already: whoever started this one will find it
            ready()
            return
        try:
            with channel.listen(rendezvous.address(self._name)) as ear:
                ready()
                while not self._finished():
                    if channel.heard([ear.fileno()], 0.1) and (line := channel.accept(ear)) is not None:
                        threading.Thread(target=self._answer, args=(line,), daemon=True).start()
        finally:
            rendezvous.leave(self._name, owned)

    def end(self) -> None:
        """The host is going down: make durable what there is, then stop."""
        self._ending.set()

    def _finished(self) -> bool:
        """Whether nobody is here any more; from then on nobody is let in."""
        with self._lock:
            if self._trainers:
                return False
            waited = time.monotonic() - self._began > FIRST_CALL_SECONDS
            self._over = self._called or waited or self._ending.is_set()
            return self._over

    def _answer(self, line: Line) -> None:
        seated: Seated | None = None
        try:
            seated = self._converse(line, line.peer()[0])
        except Exception:
            LOGGER.exception("a conversation failed")
        finally:
            line.close()
            if seated is not None:
                self._linger(*seated)

    def _converse(self, line: Line, pid: int) -> Seated | None:
        """Until the other side closes or ends. Returns the place of a trainer that went without closing."""
        seated: Seated | None = None
        end = os.pidfd_open(pid)
        try:
            while True:
                pending = _sits(seated) and seated[0].pump()
                seconds = WHOLE_SECONDS if pending else IDLE_SECONDS
                heard = channel.heard([line.fileno(), end], seconds)
                if line.fileno() in heard:
                    got = line.receive()
                    assert got is not None
                    message, blocks = got
                    if isinstance(message, Close):
                        ended = seated[0].close(seated[1], message.seconds) if _sits(seated) else None
                        line.send(Done() if ended is None else Report(self._run, self._path, pid, ended))
                        if _sits(seated) and seated[0].holds_memory:
                            return seated  # it lingers, as that of one who died
                        self._left(seated)
                        return None
                    seated = self._act(line, seated, message, blocks)
                elif end in heard or self._ending.is_set():
                    return seated
        except Gone:
            return seated
        except Exception:
            LOGGER.exception("a conversation failed")
            return seated  # as after a death: else nobody would ever let go of what lies there
        finally:
            os.close(end)

    def _act(self, line: Line, seated: Seated | None, message: Message, blocks: list[int]) -> Seated | None:
        try:
            if isinstance(message, Poke):
                return seated
            if isinstance(message, Look):
                line.send(self._report())
            elif isinstance(message, Forget):
                line.send(Done(held=self._forget()))
            elif isinstance(message, Hello) and seated is None:
                seated, answer, given = self._seat(message)
                with contextlib.suppress(Gone):  # it has died meanwhile: what it sat down to is left, as by any other
                    line.send(answer, given)
            elif seated is not None and not _sits(seated):
                raise Fenced("another process took this run over.")
            elif isinstance(message, Share) and seated is not None and len(blocks) == 1:
                seated[0].share(message.area, Block(blocks.pop()))
                line.send(Done())
            elif isinstance(message, Anew) and seated is not None:
                line.send(Done(epoch=self._anew(seated[0], message.seconds)))
            elif isinstance(message, Begin) and seated is not None:
                line.send(Done(seated[0].begin(message)))
            else:
                raise Damaged(f"a keeper of everstep {__version__} does not understand {type(message).__name__}.")
        except (EverstepError, OSError) as refused:
            line.send(_refusal(refused))
        finally:
            for block in blocks:
                os.close(block)
        return seated

    def _seat(self, hello: Hello) -> tuple[Seated, Welcome, list[int]]:
        if hello.version != __version__:
            raise StoreFailed(
                f"a keeper of everstep {__version__} still serves this run, this is {hello.version}. End the training "
                "that uses it, or wait until it ends by itself."
            )
        if not 0 <= hello.rank < RANKS_MAX:
            raise Damaged(f"there is no rank {hello.rank}.")
        with self._lock:
            if self._over:
                raise Gone("this keeper is just ending")  # it is called again, and another one starts
            self._called = True
            self._trainers += 1  # before it is welcome: this keeper must not end meanwhile
            desk = self._desks.setdefault(hello.rank, Desk(self._disk, self._run, self._path, hello.rank))
        try:
            seat, epoch, blocks = desk.welcome(hello)
        except BaseException:
            self._left((desk, -1))
            raise
        return (desk, seat), Welcome(epoch, tuple(blocks)), [block.descriptor for block in blocks.values()]

    def _anew(self, desk: Desk, seconds: float) -> int:
        """Another epoch for this desk. What dead trainers left is written first, at the other desks as well: who is
        laid out anew may need all of it."""
        began = time.monotonic()
        watch(lambda: not any(each.owes for each in [*self._desks.values()] if each is not desk), seconds)
        return desk.anew(max(0.0, seconds - (time.monotonic() - began)))

    def _left(self, seated: Seated | None) -> None:
        with self._lock:
            self._trainers -= seated is not None

    def _linger(self, desk: Desk, seat: int) -> None:
        """Keep what a dead trainer left, until someone takes it or the time is up."""
        try:
            self._keep(desk, seat)
        finally:
            self._left((desk, seat))

    def _keep(self, desk: Desk, seat: int) -> None:
        with contextlib.suppress(EverstepError, OSError):
            if not desk.orphaned(seat):
                return
        deadline = time.monotonic() + desk.linger_seconds
        while time.monotonic() < deadline and not self._ending.is_set() and rendezvous.is_at(self._name, self._path):
            if desk.seat != seat or not desk.holds_memory:
                return
            time.sleep(0.1)
        desk.forget(seat)

    def _forget(self) -> bool:
        """The desks of dead trainers are cleared; those in use stay."""
        seated = [(desk, desk.seat) for desk in self._desks.values()]
        forgotten = [desk.forget(seat) for desk, seat in seated if not desk.pid]
        return any(forgotten)

    def _report(self) -> Report:
        seated = [desk for desk in self._desks.values() if desk.pid]
        desk = (seated or list(self._desks.values()) or [Desk(self._disk, self._run, "", 0)])[0]
        return Report(self._run, self._path, desk.pid, desk.health)


def _refusal(refused: EverstepError | OSError) -> Refused:
    if isinstance(refused, Damaged):
        return Refused("Damaged", str(refused), refused.intact)
    if isinstance(refused, RunInUse):
        return Refused("RunInUse", str(refused), wait_seconds=refused.wait_seconds)
    if isinstance(refused, EverstepError):
        return Refused(type(refused).__name__, str(refused))
    return Refused("StoreFailed", f"{refused.filename or 'the run'}: {refused.strerror or refused}.")


def end_on_signals(keeping: Keeping) -> None:
    """SIGTERM and SIGINT: flush and go. SIGHUP does not concern a keeper."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: keeping.end())
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
