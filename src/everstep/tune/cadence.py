"""How often the state itself is copied again when gradients carry every step.

A restore needs the last complete state and every record since. A fill begun at step b reads its first pieces at b and
is complete K steps later; until the next one, begun at b + M, is complete too, the records b+1 .. b+M+K must be held:
M + K of them. A short cadence costs bus time, S / M bytes a step; a long one costs memory and replay. So: as short as
the bus lets it be for next to nothing, since a longer one buys nothing more and every record is replayed; but never
longer than the ring or the replay allow. Two states are held, as the one being filled is of no use yet.
"""

import math
from dataclasses import dataclass

from everstep.tune.facts import Facts
from everstep.tune.schedule import Schedule
from everstep.tune.window import window

SHARE_MAX = 0.001
"""A tenth of a percent of the training time is next to nothing: below what a step's time varies by itself."""


@dataclass(frozen=True, slots=True)
class Cadence:
    """A fill of the state begins every `steps`; up to `records` are held, and replayed, after the last complete one."""

    steps: int
    records: int
    replay_seconds: float
    host_bytes: int
    """Two states and the records."""
    overhead: float
    """Share of the training time lost to fills; the gradients come on top."""


def cadence(
    facts: Facts,
    fill: Schedule,
    *,
    ring_records: int,
    replay_seconds: float,
    replay_seconds_max: float,
    share_max: float = SHARE_MAX,
) -> Cadence:
    """The shortest cadence at which `fill` costs at most `share_max`, or else the longest that ring and replay allow.

    `replay_seconds` is for one record.
    """
    if not facts.gradient_bytes:
        raise ValueError("without gradients there are no records between two states: copy the state every time")
    if not (replay_seconds > 0 and replay_seconds_max > 0 and share_max > 0):
        raise ValueError(
            "replay_seconds, replay_seconds_max and share_max must be above 0, "
            f"are {replay_seconds!r}, {replay_seconds_max!r} and {share_max!r}"
        )
    records_max = min(ring_records, math.floor(replay_seconds_max / replay_seconds + 1e-9))
    longest = records_max - fill.spread
    if longest < fill.spread:
        raise ValueError(
            f"a fill takes {fill.spread} steps, so {2 * fill.spread} records must be held, and {records_max} can be: "
            f"the ring holds {ring_records}, and one takes {replay_seconds} s of the {replay_seconds_max} s of replay. "
            "Enlarge the ring, allow a longer replay, or fill in fewer rounds."
        )
    lost = _fill_seconds(facts, fill)
    steps = min(longest, max(fill.spread, math.ceil(lost / (share_max * facts.step_seconds) - 1e-9)))
    records = steps + fill.spread
    return Cadence(
        steps=steps,
        records=records,
        replay_seconds=records * replay_seconds,
        host_bytes=2 * facts.state_bytes + records * facts.gradient_bytes,
        overhead=lost / (steps * facts.step_seconds),
    )


def _fill_seconds(facts: Facts, fill: Schedule) -> float:
    """What one fill costs training, without what gradients cost in every step anyway."""
    waiting = fill.stall_seconds - window(facts).stall_seconds
    moving = facts.state_bytes / facts.bus_bytes_per_s
    return fill.spread * (waiting + fill.snapshot_seconds) + facts.interference * moving
