"""The ranks of one life: forked, listened to, and ended from outside when their time has come."""

import os
import selectors
import signal
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from tests.crash.hosts import Host
from tests.crash.observer import in_child
from tests.crash.rank import Life, stacks_of, train

SECONDS_MAX = 90.0
LISTEN_SECONDS = 0.003
STACKS_SECONDS = 1.0

Line = tuple[int, list[str]]
"""A rank, and what it said; of -1, what was done to it and the others."""


class Ranks:
    def __init__(self, home: str, number: int, life: Life, hosts: Sequence[Host], lagging: float | None) -> None:
        self._run = Path(home) / "run"
        self._life, self._hosts, self.lagging = life, hosts, lagging is not None
        self._began = time.monotonic()
        self._pipes = selectors.DefaultSelector()
        self._rest: dict[int, bytes] = {}
        self._alive: dict[int, int] = {}
        self._due: list[tuple[float, Callable[[], None]]] = []
        self._fell: float | None = None
        self.lines: list[Line] = []
        self.harmed = not life.closes
        """Whether any rank ends by a signal."""
        self._plan(lagging, self._let_keepers_go)
        for rank in range(life.world):
            host = hosts[life.hosts[rank]]
            self._alive[rank], reading = in_child(partial(at, host, partial(train, rank, home, number, life)))
            self._pipes.register(reading, selectors.EVENT_READ, rank)
            self._rest[rank] = b""

    def live(self) -> None:
        """Until all of them have ended, one way or the other."""
        self._plan(self._life.early, self._kill_victim)
        waiting = True
        while self._pipes.get_map():
            self._listen()
            self._bury()
            if waiting and self.count("resumed") == self._life.world:
                waiting = False
                self._plan(self._life.late, self._kill_victim)
                self._plan(self._life.keeper, self._kill_keeper)
                if self._life.held is not None or self._life.lags is not None:
                    self._host.tell_keeper(self._run, signal.SIGSTOP)
                    self._plan(self._life.held, self._let_keepers_go)
            for _, act in [due for due in self._due if due[0] <= self._now]:
                act()
            self._due = [due for due in self._due if due[0] > self._now]
            if self._now > SECONDS_MAX and self._alive:
                self.lines += [(rank, ["hung", self._stacks(rank)]) for rank in self._alive]
            if self._now > SECONDS_MAX or self._abandoned:
                for rank in list(self._alive):
                    self._kill(rank)
        while self._alive:
            self._bury()
        if self._life.lags is None:
            self._let_keepers_go()

    def count(self, word: str) -> int:
        return sum(said[0] == word for _, said in self.lines)

    @property
    def _now(self) -> float:
        return time.monotonic() - self._began

    @property
    def _abandoned(self) -> bool:
        """Whether those who are left wait for one who is gone: a launcher ends them."""
        broken = self.harmed or self.count("failed") > 0
        return broken and self._fell is not None and self._now > self._fell + self._life.grace

    def _plan(self, seconds: float | None, act: Callable[[], None]) -> None:
        if seconds is not None:
            self._due.append((self._now + seconds, act))

    def _listen(self) -> None:
        for key, _ in self._pipes.select(LISTEN_SECONDS):
            data = os.read(key.fd, 65536)
            *lines, self._rest[key.data] = (self._rest[key.data] + data).split(b"\n")
            self.lines += [(key.data, line.decode().split(" ", 3)) for line in lines]
            if not data:
                self._pipes.unregister(key.fd)
                os.close(key.fd)

    def _bury(self) -> None:
        for rank in [rank for rank, pid in self._alive.items() if os.waitpid(pid, os.WNOHANG)[0]]:
            del self._alive[rank]
            self._fell = self._now if self._fell is None else self._fell

    def _kill_victim(self) -> None:
        self.harmed = True
        self._kill(self._life.victim)

    def _kill(self, rank: int) -> None:
        if rank in self._alive:
            os.kill(self._alive[rank], signal.SIGKILL)

    def _stacks(self, rank: int) -> str:
        """What the threads of a rank do."""
        path = stacks_of(self._run.parent, rank)
        os.kill(self._alive[rank], signal.SIGUSR1)
        deadline = time.monotonic() + STACKS_SECONDS
        while time.monotonic() < deadline and not (path.exists() and path.stat().st_size):
            time.sleep(LISTEN_SECONDS)
        return path.read_text() if path.exists() else "says nothing"

    @property
    def _host(self) -> Host:
        """That of the victim: its keeper is killed or held as well."""
        return self._hosts[self._life.hosts[self._life.victim]]

    def _kill_keeper(self) -> None:
        if self._host.tell_keeper(self._run, signal.SIGKILL):
            self.lines.append((-1, ["forgotten"]))

    def _let_keepers_go(self) -> None:
        for host in self._hosts:
            host.tell_keeper(self._run, signal.SIGCONT)


def at(host: Host, work: Callable[[Callable[[str], None]], None], report: Callable[[str], None]) -> None:
    host.enter()
    work(report)
