"""SIGKILL before, after and in the middle of any file-changing call of a real training, and of its recoveries."""

import os
import random
import shutil
import signal
import tempfile
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from everstep.store import disk as disk_module
from everstep.types import Bytes
from tests.crash import observer, training

CHANGING = ("make_dir", "create", "write", "mark", "sync", "sync_file", "rename", "link", "remove", "sync_dir", "lock")
WHEN = ("before", "after", "within")
NESTED_MAX = 3
CALLS_ESTIMATE = 260
RESUME_CALLS = 40


class KillingDisk:
    """A `LocalDisk` that kills its own process at the n-th call that changes files."""

    def __init__(self, disk: disk_module.LocalDisk, call: int, when: str) -> None:
        self._disk, self._call, self._when = disk, call, when
        self._count = 0
        self._lock = threading.Lock()

    def __getattr__(self, name: str) -> Any:
        real = getattr(self._disk, name)
        return partial(self._pass, name, real) if name in CHANGING else real

    def _pass(self, name: str, real: Any, *arguments: Any) -> Any:
        with self._lock:
            self._count += 1
            mine = self._count == self._call
        if mine and name == "write" and self._when == "within":
            self._disk.write(arguments[0], [_half(arguments[1])])
        if mine and self._when != "after":
            os.kill(os.getpid(), signal.SIGKILL)
        result = real(*arguments)
        if mine:
            os.kill(os.getpid(), signal.SIGKILL)
        return result


def _half(pieces: Sequence[Bytes]) -> bytes:
    data = b"".join(bytes(piece) for piece in pieces)
    return data[: len(data) // 2]


@dataclass(slots=True)
class Kills:
    """What a series of trials saw."""

    kills: int = 0
    trials: int = 0
    nested: int = 0
    replayed: int = 0
    violations: list[str] = field(default_factory=list)


def kill_trials(seed: int, kills: int, directory: str | None = None, progress: Any = None) -> Kills:
    """Trials until `kills` processes were killed. tmpfs will do: a kill leaves the page cache as it is."""
    rng, seen = random.Random(seed), Kills()
    root = tempfile.mkdtemp(
        prefix="everstep-kill-", dir=directory or ("/dev/shm" if os.path.isdir("/dev/shm") else None)
    )
    try:
        truth = training.expected(f"{root}/expected", training.STEPS)
        while seen.kills < kills:
            before = seen.kills
            _trial(f"{root}/{seen.trials}", rng, truth, seen)
            shutil.rmtree(f"{root}/{seen.trials - 1}", ignore_errors=True)
            if progress is not None:
                progress(seen.kills - before)
    finally:
        shutil.rmtree(root, ignore_errors=True)
    return seen


def _trial(path: str, rng: random.Random, truth: dict[int, str], seen: Kills) -> None:
    """Kill a training, then up to three of its recoveries, then let one run to its end."""
    seen.trials += 1
    acknowledged, story = -1, []
    for attempt in range(NESTED_MAX + 2):
        deadly = attempt == 0 or (attempt <= NESTED_MAX and rng.random() < 0.6)
        call = rng.randrange(1, CALLS_ESTIMATE if attempt == 0 or rng.random() < 0.3 else RESUME_CALLS)
        when, wait_every = rng.choice(WHEN), rng.choice((0, 1, 4))
        story.append(f"{when} call {call}" if deadly else "unharmed")

        def opened(where: str, call: int = call, when: str = when) -> Any:
            return KillingDisk(disk_module.created(where), call, when)

        def work(report: Any, wait_every: int = wait_every, created: Any = opened if deadly else None) -> None:
            training.train(path, training.STEPS, report, wait_every=wait_every, created=created)

        child = observer.watch(*observer.in_child(work))
        if wrong := observer.compare(child, truth, acknowledged):
            seen.violations.append(f"{' > '.join(story)}: {wrong}")
            return
        acknowledged = max(acknowledged, child.acknowledged)
        if child.resumed is not None and child.resumed[0] > 0:
            seen.replayed += 1
        if child.ended:
            if acknowledged != training.STEPS:
                seen.violations.append(f"{' > '.join(story)}: ended at step {acknowledged}")
            return
        if not deadly or child.signal != signal.SIGKILL:
            seen.violations.append(f"{' > '.join(story)}: a child that nobody killed ended early")
            return
        seen.kills += 1
        seen.nested += attempt > 0
