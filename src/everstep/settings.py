"""The one place where a run is tuned. At most twelve fields; what has one right answer is not here."""

from dataclasses import dataclass
from typing import Literal

MIB = 1 << 20
GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class Settings:
    """How much memory, disk and time a run may use. The defaults suit most runs; a test freezes this list."""

    source: Literal["auto", "gradient", "layer", "state"] = "auto"
    """What is taken at every step: what the optimizer consumed ("layer": each gradient as soon as backward has made it,
    for models that are not compiled), or the whole state it left (where no step can carry that: parts of it, with what
    the optimizer consumed). "auto": gradients, but whole states on a GPU that has no memory to spare for gradients on
    their way, if a step can carry them and nobody trains along."""
    gradients: Literal["exact", "bf16"] = "exact"
    """bf16: gradients are rounded *before* the optimizer consumes them: half the bytes, and replay stays exact."""
    buffer_bytes_max: int | None = None
    """Host memory for steps on their way to the disk and for the memory tier, of each rank. None: as needed, half of
    this rank's part of what is free; more of it only if nothing could be held otherwise."""
    stall_ms_max: int = 500
    """How long one commit may wait for a full buffer; after that the step is not recorded, visibly."""
    segment_bytes: int = 256 * MIB
    """A log file is closed and the next one begun at about this size."""
    base_log_bytes_max: int | None = None
    """A new base after this much log. None: four times the state, and at least 256 MiB."""
    replay_seconds_max: float = 20.0
    """A new base before replaying the log would take longer than this."""
    retain_bytes_max: int = 16 * GIB
    """Old bases and their records go once the run is larger; the newest two bases always stay."""
    digest_every: int = 50
    """Every so many steps a record carries a digest of the whole state (of the parameters: every step)."""
    unmatched: Literal["refuse", "keep"] = "refuse"
    """What `resume` does when run and model differ: refuse, or restore what both hold and keep the rest as it is."""
    linger_seconds: float = 600.0
    """How long the keeper holds a dead trainer's newest step in memory for the next one."""
    take_over: bool = False
    """Open a run although another process holds its lease; that process is fenced off."""

    def __post_init__(self) -> None:
        for name in ("buffer_bytes_max", "segment_bytes", "retain_bytes_max", "digest_every"):
            value = getattr(self, name)
            if name == "buffer_bytes_max" and value is None:
                continue
            if not isinstance(value, int) or value < 1:
                raise ValueError(f"Settings.{name} must be a whole number of at least 1, not {value!r}")
        if self.base_log_bytes_max is not None and self.base_log_bytes_max < 1:
            raise ValueError(f"Settings.base_log_bytes_max must be at least 1 or None, not {self.base_log_bytes_max!r}")
        if self.stall_ms_max < 0:
            raise ValueError(f"Settings.stall_ms_max must not be negative, is {self.stall_ms_max!r}")
        if not self.replay_seconds_max > 0:
            raise ValueError(f"Settings.replay_seconds_max must be above 0, is {self.replay_seconds_max!r}")
        if not 0 <= self.linger_seconds < float("inf"):
            raise ValueError(f"Settings.linger_seconds must be finite and not negative, is {self.linger_seconds!r}")
        if self.source not in ("auto", "gradient", "layer", "state"):
            raise ValueError(f"Settings.source must be 'auto', 'gradient', 'layer' or 'state', not {self.source!r}")
        if (self.source, self.gradients) == ("layer", "bf16"):
            raise ValueError("Settings.gradients 'bf16' rounds what the optimizer consumes: not before backward ended")
        if self.gradients not in ("exact", "bf16"):
            raise ValueError(f"Settings.gradients must be 'exact' or 'bf16', not {self.gradients!r}")
        if self.unmatched not in ("refuse", "keep"):
            raise ValueError(f"Settings.unmatched must be 'refuse' or 'keep', not {self.unmatched!r}")
