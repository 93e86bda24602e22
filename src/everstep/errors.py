"""Every error a caller can act on, one class per decision. Messages say what, where, what is still good, what to do."""


class EverstepError(Exception):
    """Any failure that everstep itself reports."""


class NotARun(EverstepError):
    """The path holds no run, or something else: check the path."""


class UnknownFormat(EverstepError):
    """Written by a newer everstep: upgrade."""


class RunInUse(EverstepError):
    """Another process holds the run's lease: end it, or wait. `wait_seconds`: so long it may be that it lets go by
    itself."""

    def __init__(self, message: str, *, wait_seconds: float = 0.0) -> None:
        super().__init__(message)
        self.wait_seconds = wait_seconds


class Fenced(EverstepError):
    """Another writer took the run over; nothing this process commits from now on is kept."""


class Damaged(EverstepError):
    """Bytes that were acknowledged can no longer be read. `intact` is the newest step that still can be proved."""

    def __init__(self, message: str, *, intact: int | None = None) -> None:
        super().__init__(message)
        self.intact = intact


class StepNotHeld(EverstepError):
    """The run does not hold the wanted step: pick one that `everstep ls` lists."""


class Mismatch(EverstepError):
    """Run and model, optimizer or `state=` do not hold the same things. `items` lists every difference."""

    def __init__(self, message: str, items: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.items = items


class ReplayDiffers(EverstepError):
    """Replay did not reproduce the recorded digest: the state is not claimed, nothing was handed out."""


class CannotReplay(EverstepError):
    """The records need an optimizer that only the training program has: use `resume()`."""


class Unsupported(EverstepError):
    """Something in `state=`, the model or the optimizer cannot be recorded; the message names it."""


class Misdescribed(EverstepError):
    """A spec does not fit the tensors or the mesh: mend the rule that the message names."""


class Misuse(EverstepError):
    """The calls came in an order that has no meaning; the message says which order has."""


class StoreFailed(EverstepError):
    """The directory cannot be written at all (missing, read-only, not permitted)."""


class TooLittleMemory(EverstepError):
    """Not even one state and two records fit into the host memory that may be used: allow more, or record less."""


class NotAcknowledged(EverstepError, TimeoutError):
    """`wait` ran out of time; `run.health` says why the step is not durable yet."""


def as_raised(kind: str, text: str, intact: int | None = None) -> EverstepError:
    """What another process refused with, as if it had happened here."""
    if kind == Damaged.__name__:
        return Damaged(text, intact=intact)
    found = globals().get(kind)
    if isinstance(found, type) and issubclass(found, EverstepError):
        return found(text)
    return StoreFailed(text)
