"""Numbers of a run as rows: what was asked for stands beside each."""

import statistics
from collections.abc import Iterator, Sequence

from bench.harness import Row
from bench.reshard.cases import SAVED, Plan, Target
from bench.reshard.gauge import Taken, together
from bench.reshard.loading import BASE, DCP, DCP_ALL, LOG, RAW, RAW_MANY, Cache, Loaded
from bench.reshard.saving import Saved

GB, MIB = 1e9, 1 << 20
CACHES: tuple[Cache, Cache] = ("cold", "warm")


def titled(saved: Sequence[Saved]) -> str:
    state = sum(one.nbytes for one in saved)
    return f"{saved[0].parameters / 1e6:,.0f} M parameters, AdamW, {state / GB:.2f} GB"


def of_saving(model: str, saved: Sequence[Saved]) -> Iterator[Row]:
    """A step of everstep's against a checkpoint of DCP's: both are what a run writes to be able to go on from there."""
    case = f"{model}, saved by {SAVED.title}"
    dcp = max(one.dcp_blocks[-1] for one in saved)
    said = f"dcp.save: {dcp:.2f} s"
    steps = range(len(saved[0].commit_blocks))
    commit = statistics.median(max(one.commit_blocks[at] for one in saved) for at in steps)
    yield Row(case, "training loop waits, a step", commit, "s", said)
    yield Row(case, "a step is on disk after", max(one.commit_durable for one in saved), "s", said)
    yield Row(case, "first resume() returns, with a base begun", max(one.base_blocks for one in saved), "s", said)
    yield Row(case, "that base is on disk after", max(one.base_durable for one in saved), "s", said)


def of_loading(model: str, plan: Plan, target: Target, ranks: Sequence[Loaded]) -> Iterator[Row]:
    """Medians over the turns, in which each way had its turn; a ratio is of two medians, as they stand in the rows."""
    turns = {
        key: [_fastest([one.turns[key][at] for one in ranks]) for at in range(plan.turns)] for key in ranks[0].turns
    }
    wanted = sum(one.wanted for one in ranks)
    for cache in CACHES:
        case = f"{model}, {SAVED.title} to {target.title}, {cache}"
        base, dcp = turns[BASE, cache], turns[DCP, cache]
        seconds = {name: _middle(turns[name, cache]) for name in (RAW, RAW_MANY, BASE, LOG, DCP, DCP_ALL)}
        said = f"dcp.load alone: {seconds[DCP]:.2f} s; with its state dicts: {seconds[DCP_ALL]:.2f} s"
        yield Row(case, "load, from a base", seconds[BASE], "s", said)
        yield Row(case, "faster than dcp.load", _ratio(dcp, base), "x", "dcp.load alone, state allocated", ">= 1")
        best = min(RAW, RAW_MANY, key=seconds.__getitem__)
        share = 100 * seconds[best] / seconds[BASE]
        rate = f"{wanted / GB / seconds[best]:.2f} GB/s, the same bytes; {best}"
        yield Row(case, "share of the raw read rate", share, "%", rate, ">= 80" if cache == "cold" else None)
        yield Row(case, f"load, from a base and {plan.steps} records", seconds[LOG], "s", "-")
        if cache == "cold":
            yield from _costs(case, base[-1], dcp[-1], wanted)
    case = f"{model}, {SAVED.title} to {target.title}, cold"
    resumes = {name: together([one.resumes[name] for one in ranks]) for name in (BASE, LOG)}
    said = f"DCP with its state dicts: {_middle(turns[DCP_ALL, 'cold']):.2f} s"
    yield Row(case, "open() and resume(), from a base", resumes[BASE].seconds, "s", said)
    yield Row(case, f"open() and resume(), from a base and {plan.steps} records", resumes[LOG].seconds, "s", said)


def of_zero(model: str, target: Target, load_s: float, converted: Taken, loaded: Taken) -> Iterator[Row]:
    """DeepSpeed has to convert first; its bytes are those of its own, larger state."""
    case = f"{model}, {SAVED.zero} to {target.zero}, cold"
    both = f"ds_to_universal: {converted.seconds:.2f} s, load: {loaded.seconds:.2f} s"
    yield Row(case, "converted and loaded by DeepSpeed", converted.seconds + loaded.seconds, "s", both)
    yield Row(case, "everstep is faster than both", (converted.seconds + loaded.seconds) / load_s, "x", both, ">= 1")
    yield Row(case, "everstep is faster than the conversion", converted.seconds / load_s, "x", both, ">= 5")
    yield Row(case, "read from the disk by DeepSpeed's load", loaded.fetched / GB, "GB", "-")


def not_measured(model: str, target: Target, why: str) -> Row:
    case = f"{model}, {SAVED.zero} to {target.zero or target.title}, cold"
    return Row(case, "DeepSpeed's conversions measured", 0, "runs", why)


def _costs(case: str, base: Taken, dcp: Taken, wanted: int) -> Iterator[Row]:
    said = f"wanted: {wanted / GB:.2f} GB; DCP: {dcp.fetched / GB:.2f} GB"
    yield Row(case, "read from the disk by all ranks", base.fetched / GB, "GB", said)
    yield Row(case, "written during the load", base.written / MIB, "MiB", f"DCP: {dcp.written / MIB:.1f} MiB", "<= 0")
    yield Row(
        case, "memory beyond the state, most of a rank", base.extra / MIB, "MiB", f"DCP: {dcp.extra / MIB:.0f} MiB"
    )


def _fastest(ranks: Sequence[Sequence[Taken]]) -> Taken:
    """Of the tries of a turn."""
    return min((together(list(tried)) for tried in zip(*ranks, strict=True)), key=lambda taken: taken.seconds)


def _middle(taken: Sequence[Taken]) -> float:
    return statistics.median(one.seconds for one in taken)


def _ratio(one: Sequence[Taken], two: Sequence[Taken]) -> float:
    return _middle(one) / _middle(two)
