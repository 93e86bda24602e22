"""What a run looks like from outside: how far it is safe, and what stands in its way."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Health:
    """A picture of one moment.

    `state`: "ok"; "degraded" (the disk refuses writes: training goes on, acknowledgement waits); "fenced" (another
    process took the run over); "failed" (the keeper stopped); "closed".
    """

    state: Literal["ok", "degraded", "fenced", "failed", "closed"]
    committed: int
    acknowledged: int
    queued_bytes: int
    not_recorded: int
    bases: int
    error: str | None
    warnings: tuple[str, ...]
