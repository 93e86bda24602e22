"""What the caller of an import says that no checkpoint can: names, what is a buffer, which optimizer, which step."""

import re
from dataclasses import dataclass

from everstep.foreign.arrive import kinds, rules
from everstep.foreign.arrive.rules import Rename


@dataclass(frozen=True, slots=True)
class Wishes:
    """`optimizer` is a kind, `kinds.NONE` to leave the optimizer behind, or None to be told by the checkpoint.

    `order` names the optimizer's parameters, by group, where a checkpoint has numbers or nothing; `ties` maps further
    names of a parameter to its first; `state` maps a key of `state=` to the value in the checkpoint that belongs to it.
    """

    step: int | None = None
    optimizer: str | None = None
    renames: tuple[Rename, ...] = ()
    stacks: tuple[Rename, ...] = ()
    buffers: tuple[re.Pattern[str], ...] = ()
    ties: tuple[tuple[str, str], ...] = ()
    order: tuple[tuple[str, ...], ...] = ()
    state: tuple[tuple[str, str], ...] = ()


def wishes(
    *,
    step: int | None = None,
    optimizer: str | None = None,
    renames: tuple[str, ...] = (),
    stacks: tuple[str, ...] = (),
    buffers: tuple[str, ...] = (),
    ties: tuple[str, ...] = (),
    order: tuple[tuple[str, ...], ...] = (),
    state: tuple[str, ...] = (),
) -> Wishes:
    """The same from text, as a command line has it; Misuse names the option that cannot be understood."""
    return Wishes(
        step,
        None if optimizer is None else kinds.named(optimizer),
        tuple(rules.rename("--rename", text) for text in renames),
        tuple(rules.rename("--unstack", text) for text in stacks),
        tuple(rules.compiled("--buffers", text) for text in buffers),
        tuple(rules.pair("--tie", text) for text in ties),
        order,
        tuple(rules.pair("--state", text) for text in state),
    )
