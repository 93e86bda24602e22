"""Which steps are safe. Pure: what the log holds and which bases are durable, in; what can be restored, out."""

from bisect import bisect_right
from collections.abc import Sequence

from everstep.store.witness import SPANS_MAX
from everstep.types import Span


class Frontier:
    """Records lead on only from a base in the same stretch. A stretch begins where the log cannot be replayed into."""

    def __init__(self, start: int, *, based: bool, spans: Sequence[Span] = ()) -> None:
        self._starts = [start]
        self._ends = [start]
        self._bases = [start] if based else []
        self._entered = False
        """Whether the last of the spans lies in the first of the stretches."""
        self._spans = list(spans)

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
        self._bases.append(step)

    @property
    def acknowledged(self) -> int:
        """The newest step that can be restored now; -1 for none. Never beyond the log: a reader takes it as a promise
        that the log reaches so far."""
        spans = self.spans
        return spans[-1][1] if spans else -1

    @property
    def spans(self) -> tuple[Span, ...]:
        """First and last of each unbroken run of steps that can be restored, the newest of them, oldest first."""
        if self._entered:
            self._extend(self._ends[0])
        for base in self._bases:
            at = bisect_right(self._starts, base) - 1
            if at >= self._entered and base <= self._ends[at]:
                self._enter(at, base)
        self._bases = [base for base in self._bases if base > self._ends[0]]
        del self._spans[:-SPANS_MAX]
        return tuple(self._spans)

    def _enter(self, at: int, base: int) -> None:
        """The base leads to the end of its stretch; with the stretches before it nobody goes on."""
        if not self._spans or base > self._spans[-1][1] + 1:
            self._spans.append((base, base))
        del self._starts[:at], self._ends[:at]
        self._entered = True
        self._extend(self._ends[0])

    def _extend(self, last: int) -> None:
        self._spans[-1] = (self._spans[-1][0], max(last, self._spans[-1][1]))
