"""What the ledger says of a state that was put together from several writers' parts."""

from collections.abc import Container, Iterator, Mapping
from typing import Any

from everstep.capture.context import Context
from everstep.capture.roster import Roster
from everstep.recover.ledger import Item, Status
from everstep.recover.place import unowned
from everstep.recover.recover import Recovered
from everstep.recover.wanted import Wanted


def items_of(
    wanted: dict[str, Wanted], roster: Roster, context: Context, own: Recovered, parts: Mapping[int, Recovered],
    missing: list[str], optimizers: Container[str], *, new: bool, alone: bool,
) -> Iterator[Item]:  # fmt: skip
    """`parts`: what came from each writer, this rank's own first."""
    for name in roster.parameters.keys() - wanted.keys():
        yield Item(name, "parameter", "kept", "the program")
    for name, want in wanted.items():
        yield Item(name, "parameter", "restored", "; ".join(want.origins))
        for key, optimizer in roster.optimizers.items():
            if want.parameter in optimizer.state:
                yield Item(f"{key}/{name}", "optimizer", "restored", "; ".join(want.origins))
    for key, optimizer in roster.optimizers.items():
        restored = key in optimizers
        yield from (Item(f"{key}/#{text}", "optimizer", "restored", "the writers agree") for text in unowned(optimizer))
        origin = "by the parameters' names" if restored else "the program"
        yield Item(key, "hyper", "restored" if restored else "kept", origin)
    kinds: dict[str, Any] = {"buffer": "buffer", "extra": "extra", "state": "state", "rng": "generator"}
    has = {"buffer": set(roster.buffers()), "extra": set(roster.extra()), "state": set(context.state)}
    for name, (_, _, step) in own.folded.items():
        kind, _, rest = name.partition("/")
        if kind in has and rest not in has[kind]:
            if alone:  # else it is with another rank
                yield Item(rest, kinds[kind], "missing", own.origin)
        elif new and kind == "rng":
            told = "rank: nobody was it" if context.place is None else "part of the data: nobody read it"
            yield Item(rest, "generator", "derived", f"from run, step and {told} before")
        else:
            status: Status = "kept" if rest in missing else "restored"
            writer = next(at for at, part in parts.items() if name in part.folded)
            yield Item(rest, kinds[kind], status, f"writer {writer}, record {step} of {own.origin}")
