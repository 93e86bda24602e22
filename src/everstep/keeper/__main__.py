"""python -m everstep.keeper PATH RUN: what a trainer starts beside itself. Prints "ready" once it listens."""

import contextlib
import logging
import os
import sys

from everstep.keeper.serve import Keeping, end_on_signals
from everstep.store.disk import existing

NICE = 10


def main(path: str, run: str) -> None:
    _let_go()
    logging.basicConfig(format="everstep keeper %(process)d: %(message)s", level=logging.WARNING)
    with contextlib.suppress(OSError):
        os.nice(NICE)  # training comes first
    keeping = Keeping(path, run, existing(path))
    end_on_signals(keeping)
    keeping.serve(_ready)


def _let_go() -> None:
    """Close what a trainer's own parent gave it to inherit: multiprocessing tells the end of a process by such a pipe,
    and would wait for us."""
    for name in os.listdir("/proc/self/fd"):
        if int(name) > 2:
            with contextlib.suppress(OSError):
                os.close(int(name))


def _ready() -> None:
    with contextlib.suppress(BrokenPipeError):  # who started us has died; another may have called already
        sys.stdout.write("ready\n")
        sys.stdout.flush()
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)  # the trainer that started us may go; its pipe goes with it
    os.close(null)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
