"""Waits until the disk has what is committed. Has the keeper died meanwhile, its successor is given what it lacks."""

import time
from collections.abc import Callable
from typing import overload

from everstep.errors import Misuse, NotAcknowledged
from everstep.keeper.health import Health
from everstep.keeper.link import Link
from everstep.recording.recording import Recording

MIDWAY = " The disk was spared it, and the next step has begun since: call wait() right after commit()."
MIDWAY_SECONDS = 10.0
KEEPERS_MAX = 3
"""How many may die while a run is closed."""


def wait(recording: Recording, link: Link, step: int | None, seconds: float | None) -> int:
    """Wait until `step`, the newest committed by default, is on disk, and return it."""
    left = _until(seconds)
    recording.finish()
    wanted = recording.step if step is None else step
    if wanted > recording.step:
        raise Misuse(f"wait({wanted}): only steps up to {recording.step} are committed.")
    while True:
        paid = wanted <= link.acknowledged or _pay(recording, link, left())
        if wanted > recording.recorded:
            raise NotAcknowledged(
                f"step {wanted} was not recorded (see run.health), {link.acknowledged} is acknowledged. The next "
                "base closes the gap."
            )
        if link.wait(wanted, left() if paid or seconds is not None else MIDWAY_SECONDS):
            return wanted
        if not link.lost or not link.attended(left()):
            raise NotAcknowledged(_why(wanted, link.health, paid=paid))


def close(recording: Recording, link: Link, seconds: float) -> Health | None:
    """Write what is committed, for at most `seconds`, and let go of program, keeper and memory. How it ended."""
    left, ended = _until(seconds), False
    try:
        recording.finish()
        for _ in range(KEEPERS_MAX):
            _pay(recording, link, left())
            ended = link.end(left())
            if ended or not link.lost or not left():
                break
    finally:
        recording.let_go()
        health = link.close(ended=ended)
        recording.release()
    return health


def _pay(recording: Recording, link: Link, seconds: float | None) -> bool:
    """Give the disk what it does not get by itself. False if that cannot be: the program has gone on since."""
    link.attended(seconds)
    if not recording.owes:
        return True
    if recording.still:
        recording.pay(seconds)
        return True
    return False


@overload
def _until(seconds: float) -> Callable[[], float]: ...
@overload
def _until(seconds: float | None) -> Callable[[], float | None]: ...
def _until(seconds: float | None) -> Callable[[], float | None]:
    """How many of them are left."""
    deadline = None if seconds is None else time.monotonic() + seconds
    return lambda: None if deadline is None else max(0.0, deadline - time.monotonic())


def _why(step: int, health: Health, *, paid: bool) -> str:
    error = f" ({health.error})" if health.error else ""
    midway = "" if paid else MIDWAY
    newest = health.acknowledged if health.acknowledged >= 0 else "none"
    return f"step {step} is not acknowledged, {newest} is. The run is {health.state}{error}.{midway}"
