"""Forks a child, reads what it reports through a pipe, and compares it with what must be. No torch here."""

import os
import signal
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass(slots=True)
class Seen:
    """What the observer saw of one child."""

    resumed: tuple[int, str] | None = None
    committed: dict[int, str] = field(default_factory=dict)
    acknowledged: int = -1
    ended: bool = False
    failure: str | None = None
    signal: int = 0

    def take(self, line: str) -> None:
        kind, *rest = line.split(" ", 2)
        if kind == "resumed":
            self.resumed = (int(rest[0]), rest[1])
        elif kind == "committed":
            self.committed[int(rest[0])] = rest[1]
        elif kind == "acknowledged":
            self.acknowledged = max(self.acknowledged, int(rest[0]))
        elif kind == "failed":
            self.failure = " ".join(rest)
        else:
            self.ended = True


def in_child(work: Callable[[Callable[[str], None]], None]) -> tuple[int, int]:
    """Fork, run `work(report)` there, and return its pid and the pipe its reports come from."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid:
        os.close(writing)
        return pid, reading
    os.close(reading)
    status = 1
    try:
        signal.signal(signal.SIGINT, signal.SIG_IGN)

        def report(line: str) -> None:
            os.write(writing, line.replace("\n", " ").encode() + b"\n")

        try:
            work(report)
            report("ended")
            status = 0
        except BaseException:  # noqa: BLE001 the observer is told, whatever it is
            report(f"failed {traceback.format_exc(limit=-6)[-2500:]}")
    finally:
        os._exit(status)


def watch(pid: int, reading: int) -> Seen:
    """Read a child's reports until it ends, however it ends."""
    seen, rest = Seen(), b""
    with os.fdopen(reading, "rb", buffering=0) as pipe:
        while data := pipe.read(65536):
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                seen.take(line.decode())
    status = os.waitpid(pid, 0)[1]
    seen.signal = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
    return seen


def compare(seen: Seen, truth: dict[int, str], acknowledged: int) -> str | None:
    """What is wrong with what a child saw, after `acknowledged` had been promised; None if nothing."""
    if seen.failure is not None:
        return f"a child failed: {seen.failure}"
    if seen.signal not in (0, signal.SIGKILL):
        return f"a child died of signal {seen.signal}"
    if seen.resumed is not None:
        step, found = seen.resumed
        if step < acknowledged:
            return f"step {step} was recovered, {acknowledged} was acknowledged"
        if truth[step] != found:
            return f"the state of step {step} is not the uninterrupted run's"
    for step, found in seen.committed.items():
        if truth[step] != found:
            return f"after recovery, step {step} is not the uninterrupted run's"
    return None
