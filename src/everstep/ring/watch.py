"""Waits for a word of the ring. The device and the other process cannot wake us: it is looked at again and again."""

import time
from collections.abc import Callable

LOOK_SECONDS = 0.0005
LOOK_SECONDS_MAX = 0.02


def watch(done: Callable[[], bool], seconds: float | None) -> bool:
    """Whether it is done, after at most `seconds`; None waits for ever."""
    deadline = None if seconds is None else time.monotonic() + seconds
    nap = LOOK_SECONDS
    while not done():
        if deadline is not None and time.monotonic() >= deadline:
            return False
        time.sleep(nap)
        nap = min(2 * nap, LOOK_SECONDS_MAX)
    return True
