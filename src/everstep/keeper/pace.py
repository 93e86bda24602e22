"""When to write the next base. Pure arithmetic over what was measured; the clock's readings are passed in."""

from everstep.settings import Settings

LOG_BYTES_MIN = 256 << 20
STATES_OF_LOG = 4
REPLAY_SHARE = 0.1
"""Until a replay has been timed, a replayed step is taken to cost this share of a trained one."""


class Pace:
    """Counts log since the last base. A base is due after `base_log_bytes_max`, or when replay would take too long."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._state_bytes = 0
        self._log_bytes = 0
        self._records = 0
        self._began: float | None = None
        self._replay_seconds: float | None = None

    def based(self, state_bytes: int) -> None:
        """A base was taken: count anew."""
        self._state_bytes = state_bytes
        self._log_bytes = self._records = 0
        self._began = None

    def resumed(self, state_bytes: int, log_bytes: int, records: int, seconds: float) -> None:
        """A run goes on over this much log since its last base; replaying it took `seconds`."""
        self._state_bytes, self._log_bytes, self._records = state_bytes, log_bytes, records
        if records:
            self._replay_seconds = seconds / records

    def recorded(self, nbytes: int, now: float) -> bool:
        """Count a record; whether a base is due with it."""
        self._log_bytes += nbytes
        self._records += 1
        if self._began is None:
            self._began = now
        limit = self._settings.base_log_bytes_max or max(LOG_BYTES_MIN, STATES_OF_LOG * self._state_bytes)
        return self._log_bytes >= limit or self._replay(now) >= self._settings.replay_seconds_max

    def _replay(self, now: float) -> float:
        """How long replaying the log since the last base would take."""
        if self._replay_seconds is not None:
            return self._records * self._replay_seconds
        return REPLAY_SHARE * (now - self._began if self._began is not None else 0.0)
