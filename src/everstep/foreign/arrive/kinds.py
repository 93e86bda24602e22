"""Which of torch's optimizers a checkpoint's state belongs to. No format stores the class; hyper-parameters tell most.

What they do not tell is asked for, never guessed: Adam and AdamW of other systems have the same state and the same
hyper-parameters, and differ in what they do.
"""

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType

from everstep.errors import Misuse
from everstep.foreign.found import Plain

KINDS: MappingProxyType[str, str] = MappingProxyType({
    **{name: f"torch.optim.{name.lower()}.{name}" for name in (
        "ASGD", "Adadelta", "Adagrad", "Adam", "AdamW", "Adamax", "NAdam", "RAdam", "RMSprop", "Rprop", "SGD",
    )},
    "Adafactor": "torch.optim.Adafactor", "Muon": "torch.optim.Muon",
})  # fmt: skip
"""What a base calls each of them."""
MARKS: tuple[tuple[str, str], ...] = (
    ("momentum_decay", "NAdam"), ("dampening", "SGD"), ("ns_steps", "Muon"), ("centered", "RMSprop"),
    ("etas", "Rprop"), ("rho", "Adadelta"), ("lr_decay", "Adagrad"), ("lambd", "ASGD"), ("beta2_decay", "Adafactor"),
)  # fmt: skip
"""Hyper-parameters that only one of them has."""
PAIRS: frozenset[str] = frozenset({"betas", "etas", "step_sizes", "ns_coefficients"})
"""Hyper-parameters that torch keeps as tuples; descriptions of files have lists only. Adafactor's eps is another."""
NONE = "none"


def named(text: str) -> str:
    """The kind that a caller names, however it is capitalised; NONE for no optimizer at all."""
    known = {name.lower(): kind for name, kind in KINDS.items()} | {NONE: NONE}
    if text.lower() not in known:
        raise Misuse(f"--optimizer {text!r}: is not one of torch's. Known are {', '.join(sorted(KINDS))}, or none.")
    return known[text.lower()]


def inferred(groups: Sequence[Mapping[str, Plain]], states: Iterable[str]) -> str | None:
    """The kind whose hyper-parameters and state these are; None if several would fit."""
    hyper, held = {name for group in groups for name in group}, set(states)
    for mark, name in MARKS:
        if mark in hyper:
            return KINDS[name]
    if "exp_inf" in held:
        return KINDS["Adamax"]
    decoupled = {group.get("decoupled_weight_decay") for group in groups}
    if "amsgrad" in hyper and len(decoupled) == 1:
        said = decoupled.pop()
        return KINDS["AdamW"] if said is True else KINDS["Adam"] if said is False else None
    if "betas" in hyper and "amsgrad" not in hyper and decoupled <= {True, False}:
        return KINDS["RAdam"]
    return None


def values(group: Mapping[str, Plain], kind: str) -> dict[str, object]:
    """A group's hyper-parameters as torch has them."""
    pairs = PAIRS | {"eps"} if kind == KINDS["Adafactor"] else PAIRS
    return {
        name: tuple(value) if name in pairs and isinstance(value, list) else value
        for name, value in group.items()
        if name != "params"
    }
