"""What a run looks like from outside: how far it is safe, and what stands in its way."""

from typing import Literal

import msgspec

State = Literal["ok", "degraded", "fenced", "failed", "closed"]
STATES: tuple[State, ...] = ("ok", "degraded", "fenced", "failed", "closed")


class Health(msgspec.Struct, frozen=True):
    """A picture of one moment.

    `state`: "ok"; "degraded" (the disk refuses writes: training goes on, acknowledgement waits); "fenced" (another
    process took the run over); "failed" (the keeper stopped); "closed".
    `acknowledged` survives a power cut, `memory` survives the trainer. `not_recorded` steps are nowhere; `dropped` ones
    were in memory only, because the disk was too slow for them.
    """

    state: State
    committed: int
    acknowledged: int
    memory: int
    queued_bytes: int
    not_recorded: int
    dropped: int
    bases: int
    error: str | None
    warnings: tuple[str, ...]
