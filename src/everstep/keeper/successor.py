"""Another keeper in a dead one's place: started beside training, given ring and areas, it goes on from its log."""

import threading
import time
from collections.abc import Callable

from everstep.errors import EverstepError
from everstep.keeper.caller import Caller
from everstep.keeper.channel import Gone
from everstep.keeper.messages import Begin, Share
from everstep.ring.watch import watch

STARTS_MAX = 1000
AGAIN_SECONDS = 1.0
ATTENDS_SECONDS = 60.0
"""How long one is waited for at most."""


class Successor:
    """`shared` names what the keeper is to have, by number and descriptor; `asked` is what it is told then."""

    def __init__(
        self, caller: Caller, asked: Begin, shared: Callable[[], dict[int, int]], warn: Callable[[str, str], None]
    ) -> None:
        self._caller, self._asked, self._shared, self._warn = caller, asked, shared, warn
        self._starting: threading.Thread | None = None
        self._starts = 0
        self._again = 0.0
        self.epoch: int | None = None
        """The one it writes in; None while the first keeper is there."""
        self.serves = True
        """Whether there is a keeper that has everything."""

    @property
    def starting(self) -> bool:
        return self._starting is not None and self._starting.is_alive()

    @property
    def lost(self) -> bool:
        """Whether nobody listens: the keeper died, and there is none yet that has everything."""
        return not self.serves or self._caller.lost

    def attends(self, seconds: float | None) -> bool:
        """Whether a keeper listens, after at most `seconds`. Has it died, the next one says here what it lacks."""

        def there() -> bool:
            self.look()
            return not self.lost

        return watch(there, ATTENDS_SECONDS if seconds is None else min(seconds, ATTENDS_SECONDS))

    def look(self) -> None:
        """Wake the keeper. If it has died, begin to start another."""
        if self.starting:
            return
        # One that did not come, or has refused us, may have been busy with our past: it is called again, after a while.
        lost = not self._caller.poke() if self.serves else time.monotonic() >= self._again
        if lost and self._starts < STARTS_MAX:
            self._starts += 1
            self._again = time.monotonic() + AGAIN_SECONDS
            self.serves = False
            self._warn(f"the keeper died; another one takes its place ({self._starts})", "keeper")
            self._starting = threading.Thread(target=self._start, name="everstep-revive", daemon=True)
            self._starting.start()

    def _start(self) -> None:
        try:
            self.epoch = self._caller.call_again()
            for number, descriptor in self._shared().items():
                self._caller.request(Share(number), [descriptor])
            self._caller.request(self._asked)
            self.serves = True
        except (EverstepError, Gone) as failed:
            if not self._caller.over:
                self._warn(f"no keeper: {failed} Steps are in memory only.", "")
