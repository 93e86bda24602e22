"""A keeper that lives in the test's own process: the same code, threads instead of a process.

For tests that put another disk under it, or that end both at the same moment.
"""

import threading
from collections.abc import Callable
from typing import Any

from everstep.keeper import launch
from everstep.keeper.serve import Keeping
from everstep.store.disk import existing


def keep_here(disk_for: Callable[[str], Any] = existing) -> Callable[[str, str], None]:
    """What takes the place of `launch.start`; `disk_for` gives the keeper's disk for a path."""

    def start(path: str, run: str) -> None:
        ready = threading.Event()
        keeping = Keeping(path, run, disk_for(path))
        threading.Thread(target=keeping.serve, args=(ready.set,), daemon=True).start()
        assert ready.wait(launch.START_SECONDS)

    return start
