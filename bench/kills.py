"""SIGKILL of trainer and keeper at random instants: where the next trainer resumes from, what is lost, how long it is.

Every resumed state is compared, bit for bit, with the same step of an uninterrupted training without everstep.
"""

import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import torch

from bench.harness import Row, gpu, main
from bench.overhead.blocks import host_bandwidth
from bench.overhead.say import say
from everstep.keeper import channel
from everstep.keeper.messages import Look, Report
from everstep.store import rendezvous
from everstep.store.disk import existing
from everstep.store.manifest import load_identity

SEED = 20261115
LIVES_AT_ONCE = 4
LARGE = ("48", "1600", "48")
"""1.5 G parameters in steps of some 300 ms: shorter ones could not bring their gradients over the bus."""
LARGE_SHARE = 0.7
"""Of the host's memory: three states and six gradients."""


@dataclass
class Story:
    """What happened to one run. `lost` counts steps that were committed, said, and had to be trained again."""

    kills: int = 0
    lost: list[int] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    from_disk: int = 0
    states: dict[int, str] = field(default_factory=dict)
    """The digest of what each resume brought back."""
    wrong: list[int] = field(default_factory=list)
    rates: list[float] = field(default_factory=list)
    """Bytes per second of each resume: the state, and the gradients that lead on from it."""


def measure(quick: bool) -> Iterator[Row]:
    on_gpu = bool(gpu())
    shape = ("4", "512", "16") if on_gpu else ("2", "64", "2")
    kills = (6 if quick else 50) if on_gpu else (3 if quick else 20)
    steps = 4000 if on_gpu else 800
    home = Path(tempfile.mkdtemp(prefix="everstep-kills-"))
    expected = Expected(steps, shape)
    try:
        for source in ("gradient", "state"):
            stories = many(home, source, kills // 2 or 1, steps, shape, expected)
            yield from told(f"{'gpu' if on_gpu else 'cpu'}, {source}, trainer killed", stories)
        yield from told("keeper killed", [keepers_killed(home / "keeper", 2 if quick else 6, steps, shape, expected)])
        expected.end()
        if on_gpu and not quick:
            yield from large(home / "large")
    finally:
        expected.end()
        shutil.rmtree(home, ignore_errors=True)


def large(path: Path) -> list[Row]:
    """The largest model of the benchmarks: is its state back in time?"""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    expected, story = Expected(200, LARGE), Story()
    try:
        killed(path, "gradient", 2, 200, LARGE, expected, story, 0, "--memory", str(int(LARGE_SHARE * memory)))
    finally:
        expected.end()
    bus = f"bus: {host_bandwidth(torch.device('cuda')) / 1e9:.1f} GB/s"
    return [
        *told("gpu, 1.5 B parameters, trainer killed", [story]),
        Row(
            "gpu, 1.5 B parameters, trainer killed",
            "resume_gb_per_s",
            statistics.median(story.rates) / 1e9,
            "GB/s",
            bus,
        ),
    ]


class Expected:
    """The digests of an uninterrupted training, as far as anyone has asked for them."""

    def __init__(self, steps: int, shape: tuple[str, ...]) -> None:
        self._start = partial(victim, "-", steps, shape, "--digests")
        self._process: subprocess.Popen[str] | None = None
        self._found: dict[int, str] = {}
        self._lock = threading.Lock()

    def __getitem__(self, step: int) -> str:
        with self._lock:
            self._process = self._process or self._start()  # not before: it would share the device with who resumes
            while step not in self._found:
                words = line(self._process)
                self._found[int(words[1])] = words[4] if words[0] == "resumed" else words[2]
            return self._found[step]

    def check(self, story: Story) -> None:
        """Once nobody trains: this one may be far behind, and a trainer that waits for it runs further ahead."""
        story.wrong += [step for step, found in story.states.items() if found != self[step]]

    def end(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()


def many(home: Path, source: str, kills: int, steps: int, shape: tuple[str, ...], expected: Expected) -> list[Story]:
    """Several runs at once."""
    stories = [Story() for _ in range(LIVES_AT_ONCE)]
    share = [kills // LIVES_AT_ONCE + (at < kills % LIVES_AT_ONCE) for at in range(LIVES_AT_ONCE)]
    threads = [
        threading.Thread(
            target=killed, args=(home / f"{source}{at}", source, share[at], steps, shape, expected, stories[at], at)
        )
        for at in range(LIVES_AT_ONCE)
        if share[at]
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if any(story.kills < wanted for story, wanted in zip(stories, share, strict=True)):
        raise RuntimeError("a run ended before it was killed often enough; what it said is above")
    return stories


def killed(
    path: Path, source: str, kills: int, steps: int, shape: tuple[str, ...], expected: Expected, story: Story,
    seed: int, *options: str,
) -> None:  # fmt: skip
    rng = random.Random(SEED + seed)
    start = partial(victim, str(path), steps, shape, "--source", source, "--digests", "--wait", *options)
    last, heir = -1, start()
    try:
        for at in range(kills + 1):
            process = heir
            begin(process)
            told = line(process)
            heir = start()  # the next one gets ready meanwhile: most of a life is starting Python
            last = one_life(process, told, rng, story, last, kill=at < kills)
            say(f"{path.name}: {story.kills} of {kills} killed, resumed in {story.seconds[-1:]} s")
        expected.check(story)
    finally:
        heir.kill()
        heir.wait()


def one_life(
    process: subprocess.Popen[str], told: list[str], rng: random.Random, story: Story, last: int, *, kill: bool
) -> int:
    """From resume, of which it has `told`, to SIGKILL. Returns the last step it said."""
    _, resumed, spent, origin, found, nbytes = told
    if last >= 0:
        story.rates.append(int(nbytes) / float(spent))
        story.lost.append(max(0, last - int(resumed)))
        story.seconds.append(float(spent))
        story.from_disk += origin != "memory"
    if story.states.setdefault(int(resumed), found) != found:
        story.wrong.append(int(resumed))  # twice the same step, and not the same
    said = [int(resumed)]
    reader = threading.Thread(target=follow, args=(process, said))
    reader.start()
    deadline = time.monotonic() + 60
    while len(said) < 4 and time.monotonic() < deadline:
        time.sleep(0.002)
    time.sleep(rng.random() * 1.5)
    process.kill()
    process.wait()
    reader.join()
    story.kills += kill
    return said[-1]


def keepers_killed(path: Path, kills: int, steps: int, shape: tuple[str, ...], expected: Expected) -> Story:
    """Training goes on, another keeper takes over; in the end nothing that was acknowledged is missing."""
    story, rng = Story(), random.Random(SEED)
    process = victim(str(path), steps, shape, "--digests")
    line(process)
    said: list[int] = []
    reader = threading.Thread(target=follow, args=(process, said))
    reader.start()
    for _ in range(kills):
        time.sleep(1.0 + rng.random())
        before = len(said)
        if (pid := keeper_of(path)) is not None:
            os.kill(pid, 9)
            story.kills += 1
        deadline = time.monotonic() + 30
        while len(said) < before + 5 and time.monotonic() < deadline:
            time.sleep(0.01)
        if len(said) < before + 5:
            story.wrong.append(said[-1])  # training stood still
        while not served(path, process.pid) and time.monotonic() < deadline:
            time.sleep(0.01)  # both at once may lose what only memory holds: that is not the promise
    process.kill()
    process.wait()
    reader.join()
    heir = victim(str(path), steps, shape, "--digests")
    one_life(heir, line(heir), rng, story, said[-1], kill=False)
    expected.check(story)
    return story


def keeper_of(path: Path) -> int | None:
    called = call(path)
    if called is None:
        return None
    pid = called.peer()[0]
    called.close()
    return pid


def served(path: Path, trainer: int) -> bool:
    """Whether there is a keeper that holds this trainer's memory."""
    called = call(path)
    if called is None:
        return False
    try:
        called.send(Look())
        got = called.receive(5)
        return got is not None and isinstance(got[0], Report) and got[0].pid == trainer and got[0].health.memory >= 0
    except channel.Gone:
        return False
    finally:
        called.close()


def call(path: Path) -> channel.Line | None:
    disk = existing(str(path))
    name = rendezvous.name_of(load_identity(disk, str(path)).run, str(path))
    disk.release()
    return channel.call(rendezvous.address(name))


def told(case: str, stories: list[Story]) -> list[Row]:
    lost = [count for story in stories for count in story.lost]
    seconds = [spent for story in stories for spent in story.seconds]
    return [
        Row(case, "kills", sum(story.kills for story in stories), "kills", "-"),
        Row(case, "steps_lost_max", max(lost, default=0), "steps", "the last step it said", "<= 1"),
        Row(case, "resumed_from_disk", sum(s.from_disk for s in stories), "resumes", f"of {len(lost)}", "<= 0"),
        Row(case, "not_exact", sum(len(s.wrong) for s in stories), "resumes", "uninterrupted training", "<= 0"),
        Row(case, "resume_median_s", statistics.median(seconds or [0.0]), "s", "-", "<= 3.0"),
        Row(case, "resume_max_s", max(seconds, default=0.0), "s", "-"),
    ]


def victim(path: str, steps: int, shape: tuple[str, ...], *options: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "bench.victim", path, str(steps), *shape, *options]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)


def begin(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()


def follow(process: subprocess.Popen[str], said: list[int]) -> None:
    for words in lines(process):
        said.append(int(words[1]))  # noqa: PERF401 others look while it grows


def line(process: subprocess.Popen[str]) -> list[str]:
    assert process.stdout is not None
    words = process.stdout.readline().split()
    if not words:
        raise RuntimeError(f"a trainer ended with {process.wait()} before it was killed")
    return words


def lines(process: subprocess.Popen[str]) -> Iterator[list[str]]:
    assert process.stdout is not None
    for text in process.stdout:
        if text.startswith("step ") and text.endswith("\n"):
            yield text.split()


if __name__ == "__main__":
    sys.exit(main("kills", measure))
