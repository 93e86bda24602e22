"""Which step is safe. Pure: what the log holds and which bases are durable, in; the newest recoverable step, out."""

from bisect import bisect_right


class Frontier:
    """Records lead on only from a base in the same stretch. A stretch begins where the log cannot be replayed into."""

    def __init__(self, start: int, *, based: bool, before: int = -1) -> None:
        self._starts = [start]
        self._ends = [start]
        self._base = start if based else start - 1
        self._before = before

    def logged(self, step: int, *, rebase: bool) -> None:
        """The log is durable up to `step`; with `rebase`, a stretch begins there, and after missing steps before it.

        The stretch before it ends where its last record is: steps may have been skipped since, and nothing holds them.
        """
        if rebase or step != self._ends[-1] + 1:
            self._starts.append(step if rebase else step - 1)
            self._ends.append(step)
        self._ends[-1] = step

    def based(self, step: int) -> None:
        """A base of `step` is durable."""
        self._base = max(self._base, step)

    @property
    def acknowledged(self) -> int:
        """The newest step that can be restored now; -1 for none. Never beyond the log: a reader takes it as a promise
        that the log reaches so far."""
        at = bisect_right(self._starts, self._base)
        if at:  # the base lies in stretch at - 1, which leads to that stretch's end
            self._before = max(self._before, self._ends[at - 1])
            del self._starts[: at - 1], self._ends[: at - 1]
        return self._before
