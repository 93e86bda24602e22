"""What the workload did and what it was promised: the observer's memory, kept outside the disk under test."""

import hashlib
from dataclasses import dataclass, field

STATE_BYTES = 32


def after(state: bytes, body: bytes) -> bytes:
    """The state after an update: it depends on every body before it, so nothing wrong can cancel out."""
    return hashlib.blake2b(state + body, digest_size=STATE_BYTES).digest()


def anew(body: bytes) -> bytes:
    """The state after a rebase: no record leads to it."""
    return hashlib.blake2b(b"anew" + body, digest_size=STATE_BYTES).digest()


@dataclass(slots=True)
class Truth:
    """By epoch: the state after every step of its branch, and the newest step anyone saw acknowledged.

    `floor` is the newest epoch that opened: a recovery must find that branch, or a later one.
    """

    states: dict[int, dict[int, bytes]] = field(default_factory=dict)
    promised: dict[int, int] = field(default_factory=dict)
    floor: int | None = None

    def opening(self, epoch: int, parent: int | None, step: int) -> None:
        held = {} if parent is None else self.states[parent]
        self.states[epoch] = {at: state for at, state in held.items() if at <= step}
        self.promised[epoch] = -1 if parent is None else step

    def acknowledged(self, epoch: int, step: int) -> None:
        self.promised[epoch] = max(self.promised[epoch], step)

    def copy(self) -> "Truth":
        states = {epoch: dict(states) for epoch, states in self.states.items()}
        return Truth(states, dict(self.promised), self.floor)
