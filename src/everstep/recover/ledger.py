"""Where every restored item came from, and every difference between a run and the program that resumes it."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from everstep.errors import Mismatch

Status = Literal["restored", "derived", "kept", "missing"]


@dataclass(frozen=True, slots=True)
class Item:
    """`origin` is a base, or a base and the records replayed over it, or the record that held the newest value."""

    name: str
    kind: Literal["parameter", "buffer", "optimizer", "hyper", "state", "generator", "extra"]
    status: Status
    origin: str


@dataclass(frozen=True, slots=True)
class Ledger:
    """Every item of a restored state. `replay` says by which rules the records were applied.

    `changed` says why the program that goes on from here is not the one that trained so far; None if it is. `digests`
    says what was proved after tensors had been cut anew; empty where they were not.
    """

    step: int
    base_step: int
    records: int
    replay: str
    seconds: float
    replay_seconds: float
    items: tuple[Item, ...]
    notes: tuple[str, ...] = ()
    changed: str | None = None
    digests: str = ""

    def __iter__(self) -> Iterator[Item]:
        return iter(self.items)

    def __str__(self) -> str:
        counts: dict[tuple[str, str, str], int] = {}
        for item in self.items:
            key = (item.kind, item.status, item.origin)
            counts[key] = counts.get(key, 0) + 1
        lines = [
            f"step {self.step}: base {self.base_step} and {self.records} records, replayed by {self.replay}, "
            f"{self.seconds:.2f} s"
        ]
        lines += [f"  {count:6d} {kind:<10} {status:<9} {origin}" for (kind, status, origin), count in counts.items()]
        lines += [f"  {self.digests}"] if self.digests else []
        return "\n".join([*lines, *(f"  {note}" for note in self.notes)])


def refuse(step: int, differences: list[str]) -> None:
    """Raise Mismatch with all differences, if there are any."""
    if differences:
        shown = "\n  ".join(differences[:50])
        more = f"\n  ... and {len(differences) - 50} more" if len(differences) > 50 else ""
        raise Mismatch(
            f"step {step} of the run and this program do not hold the same things ({len(differences)} differences). "
            f"Nothing was changed.\n  {shown}{more}\n"
            "Make them agree, or restore what both hold with Settings(unmatched='keep').",
            tuple(differences),
        )
