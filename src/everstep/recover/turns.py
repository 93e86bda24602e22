"""Which writers are read for what a program wants, and in which order."""

from collections.abc import Mapping, Sequence

from everstep.capture.roster import Roster
from everstep.layout.owners import read_from
from everstep.recover.parts import boxes_of
from everstep.recover.wanted import Wanted
from everstep.recover.writers import Writers
from everstep.types import Box


def turns_of(
    writers: Writers, asked: Sequence[int], wanted: Mapping[str, Wanted], roster: Roster
) -> tuple[list[int], list[int], dict[str, list[Box]]]:
    """The writers to be read, our own first, and the boxes that nobody holds: together they have all the others, and
    every buffer and module's state that anyone has.

    Also in the order in which they are read, which is the same for all ranks: those who want the same of a file get it
    from the kernel's cache, while the disk goes on with what is next. Were each to begin with its own, the disk would
    have nothing to do when they come to the others'.
    """
    ours = boxes_of({name: want.held for name, want in wanted.items()})
    used, absent = read_from(ours, lambda at: boxes_of(writers.index(at).held), asked)
    turns = sorted(used)
    lacking = _context(roster).difference(*(writers.index(at).content.context for at in used))
    for at in asked:
        if not lacking:
            break
        if lacking & writers.index(at).content.context.keys():
            used.append(at)
            turns.append(at)
            lacking -= writers.index(at).content.context.keys()
    return used, turns, absent


def _context(roster: Roster) -> set[str]:
    """What of the context belongs to the model, and may be with any writer."""
    buffers = {f"buffer/{name}" for name in roster.buffers().keys() - set(roster.derived())}
    return buffers | {f"extra/{name}" for name in roster.extra()}
