"""Finds a run's keeper on this host, or starts one."""

import contextlib
import os
import sys
import time

from everstep.errors import StoreFailed
from everstep.keeper import channel
from everstep.keeper.channel import Line
from everstep.store import rendezvous

START_SECONDS = 30.0

_started: set[int] = set()
"""Keepers this process started. They outlive it at will; those that have ended are waited for in passing."""


def line_to_keeper(path: str, run: str) -> Line:
    """A line to the keeper of this run; it is started beside this process when there is none."""
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        line = channel.call(rendezvous.address(rendezvous.name_of(run, path)))
        if line is not None:
            return line
        start(path, run)
    raise StoreFailed(f"{path}: no keeper could be started within {START_SECONDS:.0f} s. Nothing was changed.")


def start(path: str, run: str) -> None:
    """Start a keeper and wait until it listens. A plain process in a session of its own: it outlives the trainer.

    Not a fork: a process that holds CUDA or threads must not be copied. It inherits nothing: whoever waits for the
    trainer's output to end must not wait for the keeper.
    """
    _wait_for_the_ended()
    name = rendezvous.name_of(run, path)
    said, says = os.pipe()
    command = [sys.executable, "-P", "-m", "everstep.keeper", path, run]  # -P: no module of the working directory
    try:
        pid = os.posix_spawn(
            sys.executable, command, os.environ, setsid=True,
            file_actions=[
                (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                (os.POSIX_SPAWN_DUP2, says, 1),
                (os.POSIX_SPAWN_OPEN, 2, rendezvous.log_of(name), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600),
            ],
        )  # fmt: skip
        _started.add(pid)
        os.close(says)
        if not channel.heard([said], START_SECONDS) or os.read(said, 6) != b"ready\n":
            why = rendezvous.last_words(name)
            raise StoreFailed(
                f"{path}: its keeper (process {pid}) could not be started{f' ({why})' if why else ''}. Nothing was "
                "changed."
            )
    finally:
        os.close(said)


def _wait_for_the_ended() -> None:
    for pid in list(_started):
        with contextlib.suppress(ChildProcessError):
            if os.waitpid(pid, os.WNOHANG) == (0, 0):
                continue
        _started.discard(pid)
