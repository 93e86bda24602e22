"""What an optimizer keeps for itself, under a text instead of a parameter. No layout cuts it, so in another layout than
the one that trained everyone gets it, and the writers must have had the same.
"""

from collections.abc import Container, Iterator, Sequence
from typing import Any, cast

from everstep.capture.context import Encoded, encode
from everstep.capture.roster import Roster
from everstep.errors import Mismatch
from everstep.recover.place import unowned
from everstep.store.base import Index, named


def differences(indexes: Sequence[Index], optimizers: Container[str]) -> Iterator[str]:
    """What writers whose bases are of the same step do not agree on, of these optimizers."""
    told: dict[tuple[str, str, int], Any] = {}
    for index in indexes:
        digests = {stored.tensor.name: stored.digest for stored in index.tensors}
        for entry in index.content.optimizers:
            for text, held in entry.unowned.items() if entry.key in optimizers else ():
                said = held, [digests.get(name) for name in named(held)]
                if told.setdefault((entry.key, text, index.step), said) != said:
                    yield unlike(entry.key, text)


def unlike(key: str, text: str) -> str:
    return (
        f"optimizer {key!r}: what it keeps under {text!r} differs from writer to writer: only the layout that trained "
        "has a place for it"
    )


class Unowned:
    """As the writers had it at the step."""

    def __init__(self) -> None:
        self._found: dict[tuple[str, str], tuple[Any, Encoded]] = {}

    def add(self, source: Roster) -> None:
        """One writer's. Mismatch where another's was different."""
        for key, optimizer in source.optimizers.items():
            for text, value in unowned(optimizer).items():
                said = encode(text, value)
                if self._found.setdefault((key, text), (value, said))[1] != said:
                    raise Mismatch(f"{unlike(key, text)}. The program has been changed, and is not to be used.")

    def place(self, roster: Roster, optimizers: Container[str]) -> None:
        """In the program, in these of its optimizers."""
        for (key, text), (value, _) in self._found.items():
            if key in optimizers and key in roster.optimizers:
                cast("dict[Any, Any]", roster.optimizers[key].state)[text] = value
