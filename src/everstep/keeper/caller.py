"""The trainer's end of the line to its keeper: asks, is answered, and calls again when a keeper has died."""

import logging
import os
import threading
import time
from collections import deque

from everstep import __version__
from everstep.errors import StoreFailed
from everstep.keeper import launch
from everstep.keeper.channel import Gone
from everstep.keeper.messages import Done, Hello, Message, Poke, Refused, Welcome, error_of

LOGGER = logging.getLogger("everstep")
ANSWER_SECONDS = 120.0
WAIT_SECONDS_MAX = 300.0
SAID_SECONDS = 5.0
"""Who waits longer is told."""
AGAIN_SECONDS = 0.2
CALLS_MAX = 10


class Question:
    """Something that the keeper was asked."""

    def __init__(self) -> None:
        self.answer: Message | None = None


class Caller:
    """One conversation after the other, each with a keeper of the same run. Safe between threads."""

    def __init__(self, path: str, run: str, rank: int, *, opened: str) -> None:
        self._path, self._run, self._rank, self._opened = path, run, rank, opened
        self._lock = threading.RLock()
        self._trainer = os.urandom(8).hex()
        self._line = launch.line_to_keeper(path, run)
        self._open: deque[Question] = deque()
        self._asked: dict[Message, Question] = {}
        self._calling = False
        self.over = False
        """Whether we have hung up for good."""

    def _hello(self, *, take_over: bool) -> Hello:
        return Hello(__version__, self._rank, os.getpid(), self._trainer, take_over, self._opened)

    def hello(self, *, take_over: bool) -> tuple[Welcome, list[int]]:
        """Ask to write; what a trainer before us left comes along. A keeper elsewhere that still writes what a dead one
        left is waited for, and a moment for one that has not seen yet that its trainer is dead."""
        began, said = time.monotonic(), False
        while True:
            got = self._hello_once(take_over=take_over)
            answer = got[0]
            if isinstance(answer, Welcome):
                return answer, got[1]
            waited = time.monotonic() - began
            if not isinstance(answer, Refused) or waited >= min(answer.wait_seconds, WAIT_SECONDS_MAX):
                raise error_of(answer)
            if answer.wait_seconds > SAID_SECONDS and not said:
                LOGGER.warning("waiting, for at most %.0f s: %s", answer.wait_seconds, answer.text)
                said = True
            time.sleep(AGAIN_SECONDS)

    def _hello_once(self, *, take_over: bool) -> tuple[Message, list[int]]:
        """A keeper that is just ending may take the call and hang up: then it is called again, and another starts."""
        with self._lock:
            for _ in range(CALLS_MAX):
                try:
                    self._line.send(self._hello(take_over=take_over))
                    got = self._line.receive(ANSWER_SECONDS)
                    break
                except Gone:
                    self._line.close()
                    self._line = launch.line_to_keeper(self._path, self._run)
            else:
                got = None
        if got is None:
            raise StoreFailed(f"{self._path}: its keeper does not answer. Nothing was changed.")
        return got

    def request(self, message: Message, blocks: list[int] | None = None, seconds: float = 0.0) -> Done:
        """Have something done that may take `seconds`; the error that the keeper refuses with is raised here."""
        return _done(self.ask(message, ANSWER_SECONDS + seconds, blocks))

    def did(self, message: Message, blocks: list[int]) -> bool:
        """Whether it has done this. It is asked the first time, and not waited for: call again to know."""
        with self._lock:
            if message not in self._asked:
                self._asked[message] = self._put(message, 0.0, blocks)
            answer = self._answer(self._asked[message], 0.0)
            if answer is not None:
                del self._asked[message]
        return answer is not None and bool(_done(answer))

    def ask(self, message: Message, seconds: float = ANSWER_SECONDS, blocks: list[int] | None = None) -> Message:
        """The answer; Gone when it does not come in time."""
        with self._lock:
            deadline = time.monotonic() + seconds
            answer = self._answer(self._put(message, seconds, blocks), max(0.0, deadline - time.monotonic()))
        if answer is None:
            raise Gone("no answer in time")
        return answer

    def _put(self, message: Message, seconds: float, blocks: list[int] | None) -> Question:
        if not self._line.takes(seconds):
            raise Gone("it does not read what it is sent")
        self._line.send(message, blocks)
        self._open.append(question := Question())
        return question

    def _answer(self, question: Question, seconds: float) -> Message | None:
        """What it said, after at most `seconds`. It answers in turn: who asked before us is given his answer first."""
        deadline = time.monotonic() + seconds
        while question.answer is None:
            got = self._line.receive(max(0.0, deadline - time.monotonic()))
            if got is None:
                return None
            self._open.popleft().answer = got[0]
        return question.answer

    @property
    def lost(self) -> bool:
        """Whether nobody is at the other end."""
        return self._line.lost

    def poke(self) -> bool:
        """Tell the keeper that there is something new. False when it has died."""
        try:
            self._line.nudge(Poke())
        except Gone:
            return False
        return True

    def call_again(self) -> int:
        """Start another keeper; the epoch it writes in. The old line is closed."""
        with self._lock:
            self._calling = True
            try:
                self._line.close()
                self._open.clear()
                self._asked.clear()
                if self.over:
                    raise Gone("nobody calls any more")
                self._line = launch.line_to_keeper(self._path, self._run)
                welcome, descriptors = self.hello(take_over=False)
                for descriptor in descriptors:  # of memory that we have
                    os.close(descriptor)
                return welcome.epoch
            finally:
                self._calling = False
                if self.over:
                    self._line.close()

    def hang_up(self) -> None:
        """For good. A call that is just being made ends by itself."""
        self.over = True
        if not self._calling:
            self._line.close()


def _done(answer: Message) -> Done:
    """The answer, if it is not a refusal."""
    if isinstance(answer, Done):
        return answer
    raise error_of(answer)
