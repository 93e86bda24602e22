"""Real power cuts on loop-mounted ext4: the shutdown ioctl drops every dirty page and the running journal transaction.

The observer stands outside the file system and cuts at a random moment or in the instant an acknowledgement arrives.
Each image goes through several rounds of cut, recover, train on.
"""

import contextlib
import fcntl
import os
import random
import select
import shutil
import signal
import struct
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from tests.crash import observer, plain

SHUTDOWN, NO_LOG_FLUSH = 0x8004587D, 2
IMAGE_BYTES = 24 << 20
OPTIONS = ("commit=1000", "data=writeback,commit=1000", "noauto_da_alloc,commit=5", "data=journal")
STEPS = 120
ROUNDS = 6
ROUND_SECONDS_MAX = 30.0


class CannotCut(Exception):
    """This machine lets us cut no power: say so instead of passing."""


@dataclass(slots=True)
class Cuts:
    """What a series of cuts saw."""

    cuts: int = 0
    idle: int = 0
    at_acknowledgement: int = 0
    recovered: int = 0
    by: Counter[str] = field(default_factory=Counter)
    controls: int = 0
    controls_lost: int = 0
    violations: list[str] = field(default_factory=list)


class Image:
    """An ext4 file system in a file, mounted through a loop device."""

    def __init__(self, root: str, options: str) -> None:
        self._file, self.path, self._options = f"{root}/image", f"{root}/mounted", options
        os.makedirs(self.path, exist_ok=True)
        with open(self._file, "wb") as image:
            image.truncate(IMAGE_BYTES)
        _run("mkfs.ext4", "-q", "-F", self._file)

    @contextlib.contextmanager
    def mounted(self) -> Iterator[str]:
        _run("mount", "-o", f"loop,{self._options}", self._file, self.path)
        try:
            yield self.path
        finally:
            _run("umount", self.path)

    def cut(self) -> None:
        """The power goes: from here on nothing reaches the disk."""
        descriptor = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.ioctl(descriptor, SHUTDOWN, struct.pack("I", NO_LOG_FLUSH))
        finally:
            os.close(descriptor)


def require() -> None:
    """Raise CannotCut unless images can be made, mounted and cut here."""
    if os.geteuid() != 0:
        raise CannotCut("power cuts need root (mount, loop devices, the ext4 shutdown ioctl).")
    missing = [tool for tool in ("mkfs.ext4", "mount", "umount") if shutil.which(tool) is None]
    if missing or not os.path.exists("/dev/loop-control"):
        raise CannotCut(f"power cuts need {', '.join(missing) or 'loop devices'}.")


def power_cuts(seed: int, cuts: int, *, plainly: bool, progress: Any = None) -> Cuts:
    """Cut until `cuts` times the power has gone. `plainly`: the torch-free workload instead of a real training."""
    require()
    rng, seen = random.Random(seed), Cuts()
    root = tempfile.mkdtemp(prefix="everstep-power-")
    try:
        if plainly:
            truth, child = plain.expected(STEPS), plain.train
        else:
            from tests.crash import training  # torch, which the plain workload does without

            truth, child = training.expected(f"{root}/expected", STEPS), training.train
        turn = rng.randrange(len(OPTIONS))
        while seen.cuts < cuts:
            turn += 1
            image = Image(root, OPTIONS[turn % len(OPTIONS)])
            _control(image, seen)
            before = seen.cuts
            _rounds(image, rng, child, truth, seen, OPTIONS[turn % len(OPTIONS)])
            if progress is not None:
                progress(seen.cuts - before)
    finally:
        shutil.rmtree(root, ignore_errors=True)
    return seen


def _control(image: Image, seen: Cuts) -> None:
    """What everyone does, write and rename, must lose its data here, or the harness cuts nothing."""
    seen.controls += 1
    with image.mounted() as path:
        with open(f"{path}/draft", "wb") as draft:
            draft.write(b"precious" * 4000)
        os.rename(f"{path}/draft", f"{path}/saved")
        image.cut()
    with image.mounted() as path:
        saved = f"{path}/saved"
        if os.path.exists(saved) and os.path.getsize(saved) == 32000:
            seen.violations.append("control: a file that was not synced survived the cut; the harness cuts nothing")
        else:
            seen.controls_lost += 1


def _rounds(image: Image, rng: random.Random, train: Any, truth: dict[int, str], seen: Cuts, options: str) -> None:
    acknowledged = -1
    for at in range(ROUNDS + 1):
        final = at == ROUNDS or acknowledged == STEPS
        wait_every = rng.choice((0, 1, 5))
        with image.mounted() as path:
            work = partial(train, f"{path}/run", STEPS, wait_every=wait_every)
            pid, reading = observer.in_child(lambda report, work=work: work(report=report))
            child = observer.watch(pid, reading) if final else _watch_and_cut(pid, reading, image, rng, seen)
        if wrong := observer.compare(child, truth, acknowledged):
            seen.violations.append(f"{options}, round {at}: {wrong}")
            return
        if child.resumed is not None:
            seen.recovered += 1
        acknowledged = max(acknowledged, child.acknowledged)
        if final and acknowledged != STEPS:
            seen.violations.append(f"{options}: the last round ended at step {acknowledged}")
        if final:
            return
        seen.by[options] += not child.ended


def _watch_and_cut(pid: int, reading: int, image: Image, rng: random.Random, seen: Cuts) -> observer.Seen:
    """Read reports until the chosen moment, cut, then end the child. What it reports after the cut does not count."""
    child, rest = observer.Seen(), b""
    on_acknowledgement = rng.random() < 0.5
    reports_left = rng.randrange(1, 14) if on_acknowledgement else 1 << 30
    moment = time.monotonic() + (ROUND_SECONDS_MAX if on_acknowledgement else rng.uniform(0.0, 0.2))
    with os.fdopen(reading, "rb", buffering=0) as pipe:
        while reports_left > 0 and (left := moment - time.monotonic()) > 0:
            if not select.select([pipe], [], [], left)[0]:
                break
            data = pipe.read(65536)
            if not data:
                break
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                child.take(line.decode())
                reports_left -= line.startswith(b"acknowledged")
        image.cut()
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    if child.ended:
        seen.idle += 1  # it was done before the moment came: the cut hit nobody
    else:
        seen.cuts += 1
        seen.at_acknowledgement += reports_left <= 0
    return child


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise CannotCut(f"{' '.join(command)}: {done.stderr.strip() or done.returncode}")
