"""The parts of `make crash`: what each runs, in tasks small enough to show progress, and the rows it reports."""

import itertools
import random
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass
from multiprocessing import get_context
from typing import Any

from tests.crash.bugs import BUGS
from tests.crash.explore import Exploration, Tally
from tests.crash.report import Row
from tests.crash.scenarios import SCENARIOS

Step = Callable[[int], None]


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much of everything. `thorough` random runs are exhaustive up to 12 effects, `broad` ones up to 6."""

    thorough: int = 4
    broad: int = 70
    states: int = 500_000
    lossy: int = 50_000
    faulty: int = 100_000
    schedules: float = 1.0
    sampled: int = 400
    kills: int = 2_000
    cuts: int = 300
    lives: int = 600
    kills_per_task: int = 40
    cuts_per_task: int = 16


FULL = Sizes()
QUICK = Sizes(0, 6, 20_000, 5_000, 5_000, 0.1, 20, 60, 24, 20, 20, 12)


def shared(tasks: Iterable[tuple[Any, ...]], workers: int, enough: Callable[[], bool] = lambda: False) -> Iterator[Any]:
    """Results of `task[0](*task[1:])` in forked processes, as they come, until the tasks end or it is enough."""
    source, waiting = iter(tasks), set[Future[Any]]()
    with ProcessPoolExecutor(workers, mp_context=get_context("fork")) as pool:
        for task in itertools.islice(source, workers):
            waiting.add(pool.submit(*task))
        while waiting:
            done, waiting = wait(waiting, return_when=FIRST_COMPLETED)
            for future in done:
                yield future.result()
            if not enough():
                waiting |= {pool.submit(*task) for task in itertools.islice(source, workers - len(waiting))}


def _explore(seed: int, mode: str, exhaustive_max: int) -> tuple[Tally, float]:
    began = time.process_time()
    tally = Exploration(seed, **({mode: True} if mode else {}), exhaustive_max=exhaustive_max).run(14)
    return tally, time.process_time() - began


def simulate(seed: int, sizes: Sizes, workers: int, step: Step) -> tuple[list[Row], list[str]]:
    """Crash states of random runs, the same on a disk that drops flushes, and writers that take each other over."""
    began, total = time.perf_counter(), Tally()
    seconds = 0.0
    first = seed * 1_000_000
    tasks: Iterator[tuple[Any, ...]] = itertools.chain(
        ((_explore, first + at, "", 12) for at in range(sizes.thorough)),
        ((_explore, first + at, "", 6) for at in itertools.count(sizes.thorough)),
    )
    runs, wanted = [0], sizes.thorough + sizes.broad
    for tally, spent in shared(tasks, workers, lambda: runs[0] >= wanted and total.states >= sizes.states):
        runs[0] += 1
        total.add(tally)
        seconds += spent
        step(tally.states)
    wall = time.perf_counter() - began
    lossy = _mode("lossy", first + 400_000, sizes.lossy, workers, step)
    faulty = _mode("faulty", first + 700_000, sizes.faulty, workers, step)
    plays, wrongs = _plays(seed, sizes, workers)
    errors = "calls that fail, then crashes (E1)"
    case, flush, two = "simulated power cuts (W1)", "disk that drops confirmed flushes (W7)", "paused writers (P7)"
    rows = [
        Row(case, "crash states", total.states, "", f">= {sizes.states}", total.states >= sizes.states),
        Row(case, "broken promises", total.violations, "", "0", total.violations == 0),
        Row(case, "random runs", runs[0], "", "", True),
        Row(case, "crash points", total.points, "", "", True),
        Row(case, "states reopened and continued", total.continued, "", "", True),
        Row(case, "rate", round(total.states / seconds), "states/s of CPU", ">= 3000", total.states / seconds >= 3000),
        Row(case, "wall clock", round(wall, 1), "s", "", True),
        Row(flush, "crash states", lossy.states, "", f">= {sizes.lossy}", lossy.states >= sizes.lossy),
        Row(flush, "wrong states", lossy.violations, "", "0", lossy.violations == 0),
        Row(errors, "crash states", faulty.states, "", "", faulty.states > 0),
        Row(errors, "broken promises", faulty.violations, "", "0", faulty.violations == 0),
        Row(two, "interleavings", plays, "", "", plays > 0),
        Row(two, "broken promises", len(wrongs), "", "0", not wrongs),
    ]
    return rows, [
        *total.examples,
        *(f"lossy: {text}" for text in lossy.examples),
        *(f"faulty: {text}" for text in faulty.examples),
        *wrongs[:5],
    ]


def _mode(mode: str, first: int, states: int, workers: int, step: Step) -> Tally:
    total = Tally()
    tasks = ((_explore, first + at, mode, 6) for at in itertools.count())
    for tally, _ in shared(tasks, workers, lambda: total.states >= states):
        total.add(tally)
        step(tally.states)
    return total


def _plays(seed: int, sizes: Sizes, workers: int) -> tuple[int, list[str]]:
    from tests.crash.interleave import WORKS, enumerate_plays

    count, wrongs = 0, []
    tasks = ((_play, enumerate_plays, work, seed, sizes) for work in WORKS)
    for played, wrong in shared(tasks, workers):
        count += played
        wrongs += wrong
    return count, wrongs


def _play(enumerate_plays: Any, work: str, seed: int, sizes: Sizes) -> tuple[int, list[str]]:
    rng = random.Random(f"{seed} {work}")
    count, wrongs = enumerate_plays(work, rng, sampled=sizes.sampled, share=sizes.schedules)
    return count, wrongs


def kill(seed: int, sizes: Sizes, workers: int, step: Step) -> tuple[list[Row], list[str]]:
    """SIGKILL of real trainings."""
    from tests.crash import killing

    _preload()
    total = killing.Kills()
    began = time.perf_counter()
    tasks = ((killing.kill_trials, seed * 10_000 + at, sizes.kills_per_task) for at in itertools.count())
    for seen in shared(tasks, workers, lambda: total.kills >= sizes.kills):
        total.kills += seen.kills
        total.trials += seen.trials
        total.nested += seen.nested
        total.replayed += seen.replayed
        total.violations += seen.violations
        step(seen.kills)
    case = "SIGKILL of a real training (C1 C4 C5)"
    return [
        Row(case, "kills", total.kills, "", f">= {sizes.kills}", total.kills >= sizes.kills),
        Row(case, "of them during recovery", total.nested, "", "", total.nested > 0),
        Row(case, "runs continued and compared", total.trials, "", "", total.trials > 0),
        Row(case, "recoveries from a step > 0", total.replayed, "", "", total.replayed > 0),
        Row(case, "broken promises", len(total.violations), "", "0", not total.violations),
        Row(case, "wall clock", round(time.perf_counter() - began, 1), "s", "", True),
    ], total.violations


def power(seed: int, sizes: Sizes, workers: int, step: Step) -> tuple[list[Row], list[str]]:
    """Real power cuts, half of them of a real training, half of the plain workload."""
    from tests.crash import power as power_module

    power_module.require()
    _preload()
    total = power_module.Cuts()
    began = time.perf_counter()
    tasks = ((_cut, seed * 10_000 + at, sizes.cuts_per_task, at % 2 == 1) for at in itertools.count())
    for seen in shared(tasks, workers, lambda: total.cuts >= sizes.cuts):
        total.cuts += seen.cuts
        total.idle += seen.idle
        total.at_acknowledgement += seen.at_acknowledgement
        total.recovered += seen.recovered
        total.by += seen.by
        total.controls_lost += seen.controls_lost
        total.violations += seen.violations
        total.controls += seen.controls
        step(seen.cuts)
    case = "power cuts on ext4 (W2 W3 W4 W6)"
    return [
        Row(case, "cuts", total.cuts, "", f">= {sizes.cuts}", total.cuts >= sizes.cuts),
        Row(case, "at an acknowledgement", total.at_acknowledgement, "", "", total.at_acknowledgement > 0),
        Row(case, "after the run had ended (not counted)", total.idle, "", "", True),
        Row(case, "recoveries", total.recovered, "", "", total.recovered > 0),
        *(Row(case, options, count, "cuts", "", count > 0) for options, count in sorted(total.by.items())),
        Row(case, "broken promises", len(total.violations), "", "0", not total.violations),
        Row(case, "wall clock", round(time.perf_counter() - began, 1), "s", "", True),
        Row(
            "control: write and rename, no fsync", "lost", total.controls_lost, "", f"{total.controls}",
            total.controls_lost == total.controls > 0,
        ),
    ], total.violations  # fmt: skip


def _cut(seed: int, cuts: int, plainly: bool) -> Any:
    from tests.crash.power import power_cuts

    return power_cuts(seed, cuts, plainly=plainly)


def _preload() -> None:
    """Once, before the workers are forked."""
    import tempfile

    from tests.crash.training import preload

    with tempfile.TemporaryDirectory() as directory:
        preload(f"{directory}/run")


def live(seed: int, sizes: Sizes, workers: int, step: Step) -> tuple[list[Row], list[str]]:
    """Ranks, keepers and layouts at random, from memory and from disk."""
    from tests.crash import lives

    total = lives.Lived()
    began = time.perf_counter()
    tasks = ((lives.story, seed * 10_000 + at) for at in itertools.count())
    for seen in shared(tasks, workers, lambda: total.lives >= sizes.lives):
        total.lives += seen.lives
        total.harmed += seen.harmed
        total.from_memory += seen.from_memory
        total.from_disk += seen.from_disk
        total.violations += seen.violations
        step(seen.lives)
    case = "ranks, keepers and layouts at random (P1 P2 P3)"
    return [
        Row(case, "lives", total.lives, "", f">= {sizes.lives}", total.lives >= sizes.lives),
        Row(case, "of them ended by SIGKILL", total.harmed, "", "", total.harmed > 0),
        Row(case, "resumed from memory", total.from_memory, "", "", total.from_memory > 0),
        Row(case, "resumed from disk", total.from_disk, "", "", total.from_disk > 0),
        Row(case, "broken promises", len(total.violations), "", "0", not total.violations),
        Row(case, "wall clock", round(time.perf_counter() - began, 1), "s", "", True),
    ], total.violations


def seeded(_seed: int, _sizes: Sizes, workers: int, step: Step) -> tuple[list[Row], list[str]]:
    """Every safety taken out once must be missed; with all of them in place nothing is."""
    missed, alarms = [], []
    tasks = [*((_clean, name) for name in SCENARIOS), *((_mutated, name) for name in BUGS)]
    for name, wrong, mutated in shared(tasks, workers):
        step(1)
        if mutated and wrong is None:
            missed.append(f"seeded bug not caught: {name}")
        elif not mutated and wrong is not None:
            alarms.append(f"scenario {name} fails on the unmodified code: {wrong}")
    case, caught = "seeded bugs (G3)", len(BUGS) - len(missed)
    return [
        Row(case, "caught", caught, f"of {len(BUGS)}", "all, >= 14", not missed and caught >= 14),
        Row(case, "false alarms on the unmodified code", len(alarms), "", "0", not alarms),
    ], missed + alarms


def _clean(name: str) -> tuple[str, str | None, bool]:
    return name, SCENARIOS[name](), False


def _mutated(name: str) -> tuple[str, str | None, bool]:
    scenario, bug = BUGS[name]
    with bug():
        return name, SCENARIOS[scenario](), True


PARTS = {"bugs": seeded, "sim": simulate, "kill": kill, "lives": live, "power": power}
