"""Lives of one run, one after the other: layouts and settings at random, ranks and keepers killed at any instant, with
real keepers beside them. Whatever a resume brings back must be what was trained, at or after what was acknowledged.
"""

import random
import re
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from signal import SIGKILL

from click.testing import CliRunner

import everstep
from everstep.cli.main import cli
from everstep.errors import NotARun, RunInUse, StepNotHeld
from tests.crash import observer
from tests.crash.device import Device
from tests.crash.hosts import Disk, Host
from tests.crash.rank import Life
from tests.crash.ranks import Line, Ranks

LAYOUTS = (
    ("single", 1), ("ddp", 2), ("ddp", 3), ("fsdp", 2), ("fsdp", 3), ("tp", 2), ("hsdp", 4), ("2d", 4), ("pp", 2),
    ("pp interleaved x tp", 4), ("zero1", 2), ("zero3", 2), ("redundant", 2),
)  # fmt: skip
BUCKETS = ("zero1", "zero3", "redundant")
"""Here an optimizer's parameters are not the model's."""
COMMANDS = (
    ("verify",), ("verify",), ("prune", "--keep", "last:20"), ("prune", "--keep", "branches"), ("ls",), ("log",),
    ("show",), ("explain", "--onto", "fsdp:3"), ("explain", "--onto", "single"),
)  # fmt: skip
LIVES = 10
SMALL_DISKS = 0.2
LINGER_SECONDS = 600.0
ENOSPC = "No space left on device"
BEREFT = ("onnection", "gloo", "Gloo", "peer", "Store", "waited 300 s")
"""Of this speaks a rank whose peers are gone."""
OURS = re.compile(r"/everstep/[\w/]+\.py")


@dataclass(slots=True)
class Lived:
    """What a series of lives saw."""

    lives: int = 0
    harmed: int = 0
    from_memory: int = 0
    from_disk: int = 0
    violations: list[str] = field(default_factory=list)


def story(seed: int, lives: int = LIVES) -> Lived:
    """One run, under one to three layouts, on one host or two."""
    rng, seen, truth = random.Random(seed), Lived(), Truth()
    layouts = rng.sample(LAYOUTS, rng.choice((1, 2, 3)))
    home = tempfile.mkdtemp(prefix="everstep-lives-")
    disk = Disk.mounted(f"{home}/run", rng.randrange(150_000, 600_000)) if rng.random() < SMALL_DISKS else None
    hosts = [Host(), *([Host.up()] if rng.random() < 0.4 else [])]
    places = {layout: placed(rng, layout[1], len(hosts)) for layout in layouts}
    moves, lagging = rng.random() < 0.3, None
    try:
        for number in range(lives):
            layout = rng.choice(layouts)
            if moves and rng.random() < 0.3:
                places[layout] = placed(rng, layout[1], len(hosts))
            life = drawn(rng, layout, places[layout], truth.durable)
            ranks = Ranks(home, number, life, hosts, lagging)
            ranks.live()
            lagging = life.lags
            full = disk is not None
            wrong = list(truth.judged(life, ranks.lines, harmed=ranks.harmed, lagging=ranks.lagging, full=full))
            if disk is not None and rng.random() < 0.2:
                disk = disk.grown()
            seen.lives += 1
            seen.harmed += ranks.harmed
            for rank, said in ranks.lines:
                seen.from_memory += (rank, said[0], said[-1]) == (0, "resumed", "memory")
                seen.from_disk += (rank, said[0], said[-1]) == (0, "resumed", "disk")
            seen.violations += [f"seed {seed}, life {number}, {life}: {text}" for text in wrong]
            if not wrong and lagging is None and rng.random() < 0.3:  # beside what a keeper still writes
                wrong = said_wrong(f"{home}/run", rng.choice(COMMANDS), held=truth.durable > 0)
                seen.violations += [f"seed {seed}, after life {number}, {life}: {text}" for text in wrong]
            if wrong:
                break
        else:
            if disk is not None:
                disk.grown()
            for host in hosts:
                host.tell_keeper(Path(home) / "run", SIGKILL)
            wrong = said_wrong(f"{home}/run", ("verify", "--replay"), held=truth.durable > 0)
            seen.violations += [f"seed {seed}, in the end: {text}" for text in wrong]
    finally:
        for host in hosts:
            host.tell_keeper(Path(home) / "run", SIGKILL)
            host.down()
        if disk is not None:
            disk.unmount()
        shutil.rmtree(home, ignore_errors=True)
    return seen


def placed(rng: random.Random, world: int, hosts: int) -> tuple[int, ...]:
    """On which host each rank is."""
    first, blocks = rng.randrange(hosts), rng.random() < 0.7
    return tuple((first + (rank * hosts // world if blocks else rank)) % hosts for rank in range(world))


def drawn(rng: random.Random, layout: tuple[str, int], hosts: tuple[int, ...], durable: int) -> Life:
    kind, world = layout
    early = rng.choice((None, None, rng.uniform(0.1, 1.5)))
    late = rng.choice((None, rng.uniform(0, 0.1), rng.uniform(0, 0.5)))
    source = rng.choice(("auto", "gradient", "layer", "state"))
    settings = everstep.Settings(
        source=source, gradients="exact" if source == "layer" else rng.choice(("exact", "exact", "bf16")),
        buffer_bytes_max=rng.choice((600_000, 16 << 20)),
        segment_bytes=rng.choice((8000, 8000, 100_000)), digest_every=rng.choice((1, 5, 50)),
        retain_bytes_max=rng.choice((100_000, 1 << 30)), stall_ms_max=rng.choice((20, 500)),
        linger_seconds=rng.choice((LINGER_SECONDS, LINGER_SECONDS, 0.0, 0.3)),
    )  # fmt: skip
    waits, closes = rng.random() < 0.3, rng.random() < 0.4
    crowded = rng.choice((None, None, rng.randrange(20)))
    device = Device(rng.choice((None, 2e5, 1e6, 1e7)), crowded, rng.randrange(1 << 20)) if rng.random() < 0.4 else None
    return Life(
        kind, world, hosts, settings, rng.choice((1, 3, 10, 30)), rng.choice((0.0, 0.005)), apart=rng.random() < 0.5,
        edits=rng.random() < 0.2 and kind not in BUCKETS, waits=waits, closes=closes,
        victim=rng.randrange(world), grace=rng.choice((0.0, 0.02, 0.3)), device=device,
        back=rng.randint(0, durable) if rng.random() < 0.1 else None,
        early=early, late=late if early is None else None,
        keeper=rng.uniform(0, 0.4) if rng.random() < 0.15 else None,
        held=rng.uniform(0.05, 1.0) if rng.random() < 0.1 else None,
        lags=rng.uniform(0.05, 0.6) if rng.random() < 0.3 and not (waits or closes) else None,
    )  # fmt: skip


def said_wrong(run: str, command: Sequence[str], *, held: bool) -> list[str]:
    """Why one of the commands is wrong about the run, in a process of its own; `held`: something is acknowledged."""
    found = observer.watch(*observer.in_child(partial(ask, run, command, held)))
    return [] if found.failure is None else [f"{' '.join(command)}: {found.failure}"]


def ask(run: str, command: Sequence[str], held: bool, _report: object) -> None:
    done = CliRunner().invoke(cli, [*command, run, "--json"], obj={})
    nothing = not held and isinstance(done.exception, NotARun | StepNotHeld)
    nothing = nothing or isinstance(done.exception, RunInUse)  # a keeper still writes
    nothing = nothing or ENOSPC in str(done.exception)  # of a disk so little, little is kept for pruning it
    assert done.exit_code == 0 or nothing, f"{done.exception!r} {done.output[:2000]}"


class Truth:
    """What was trained, and what was promised."""

    def __init__(self) -> None:
        self._states: dict[int, set[str]] = {}
        self._branches = False
        self.durable = 0
        self._remembered = -1
        self._layout: tuple[object, ...] = ()

    def judged(self, life: Life, lines: list[Line], *, harmed: bool, lagging: bool, full: bool) -> Iterator[str]:
        """What was wrong with a life. `lagging`: it began beside keepers that stood still, and could not say why;
        `full`: the disk may have been."""
        if (life.kind, life.world, life.hosts) != self._layout:
            self._remembered = -1  # memory is for those who are where its trainers were, and laid out as they were
        self._layout, remembered = (life.kind, life.world, life.hosts), {}
        for rank, (word, *told) in lines:
            if word == "resumed":
                yield from self._resumed(life.back, int(told[0]), *told[1:])
            elif word == "trained":
                self._trained(int(told[0]), told[1])
            elif word in ("committed", "waited"):
                self.durable = max(self.durable, int(told[-1]))
                remembered[rank] = int(told[-2]) if word == "committed" else remembered[rank]
            elif word == "failed" and life.back is not None and "StepNotHeld" in " ".join(told):
                continue  # it was pruned, or passed over
            elif word == "failed" and lagging and "RunInUse" in " ".join(told):
                continue  # it moved to another host
            elif word in ("failed", "hung") and full and (harmed or _for_want_of_room(" ".join(told))):
                continue  # a lease without a text does not say that it is soon to be had
            elif word == "hung" or (word == "failed" and not (harmed and _bereft(" ".join(told)))):
                yield f"rank {rank} {word}: {' '.join(told)}"
        if len({told[0] for _, (word, *told) in lines if word == "resumed"}) > 1:
            yield "the ranks resumed at different steps"
        words = {word for _, (word, *_) in lines}
        if life.back is not None and "resumed" not in words:  # whether it has gone back nobody said
            self._branches, self.durable, self._remembered = True, min(self.durable, life.back), -1
        if words & {"resumed", "forgotten"}:
            # Of states memory has the newest alone.
            lasting = life.settings.source != "state" and life.settings.linger_seconds == LINGER_SECONDS
            lasting = lasting and "forgotten" not in words
            self._remembered = min(remembered.values()) if lasting and len(remembered) == life.world else -1

    def _resumed(self, back: int | None, step: int, state: str, origin: str) -> Iterator[str]:
        if back is not None:
            if step != back:
                yield f"step {step}, {back} was asked for"
            self._branches, self.durable, self._remembered = True, min(self.durable, step), -1
        if step < max(self.durable, self._remembered):
            yield f"step {step} from {origin}; on disk was {self.durable}, in memory {self._remembered}"
        if state not in self._states.setdefault(step, {state}):
            yield f"step {step} from {origin} is not as it was trained"

    def _trained(self, step: int, state: str) -> None:
        """A step that was lost is trained again; of another branch the one before stays."""
        self._states[step] = {state} | (self._states.get(step, set()) if self._branches else set())


def _for_want_of_room(failure: str) -> bool:
    return any(text in failure for text in (ENOSPC, "NotAcknowledged", "RunInUse"))


def _bereft(failure: str) -> bool:
    """Whether a rank failed because its peers are gone: where torch waits for them, or where we do."""
    return OURS.search(failure) is None or any(text in failure for text in BEREFT)
