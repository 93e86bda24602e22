"""What trainer and keeper say to each other. Small and rare: steps travel through the ring, not through here."""

import msgspec

from everstep.errors import EverstepError, StoreFailed, as_raised
from everstep.keeper.health import Health


class Hello(msgspec.Struct, frozen=True, tag="hello"):
    """A trainer asks to write. `pid` is whose end ends its part; `trainer` tells it from others, also when it calls
    again."""

    version: str
    rank: int
    pid: int
    trainer: str
    take_over: bool
    opened: str


class Look(msgspec.Struct, frozen=True, tag="look"):
    """Someone asks how the run is. Answered by a Report."""


class Forget(msgspec.Struct, frozen=True, tag="forget"):
    """Let a dead trainer's memory go. Answered by Done; `held` says whether there was any."""


class Share(msgspec.Struct, frozen=True, tag="share"):
    """A block of memory comes with this message: the ring (area -1) or an area."""

    area: int


class Begin(msgspec.Struct, frozen=True, tag="begin"):
    """Training goes on after `step` of the branch `epoch` (None: a new history); `memory`: as the ring has it.

    `revived`: a keeper died, and this one is to go on where the log ends.
    """

    step: int
    epoch: int | None
    memory: bool
    segment_bytes: int
    retain_bytes_max: int
    linger_seconds: float
    revived: bool = False


class Anew(msgspec.Struct, frozen=True, tag="anew"):
    """The trainer does not go on with what one before it left: it needs an epoch of its own. First the disk gets what
    was left, for at most so long. Answered by Done."""

    seconds: float


class Poke(msgspec.Struct, frozen=True, tag="poke"):
    """Something new is in the ring. Not answered."""


class Close(msgspec.Struct, frozen=True, tag="close"):
    """Write what is committed, for at most so long, and let the run go."""

    seconds: float


class Welcome(msgspec.Struct, frozen=True, tag="welcome"):
    """The run is yours. `blocks` come with it when a trainer before you died: -1 is the ring, others are areas."""

    epoch: int
    blocks: tuple[int, ...]


class Done(msgspec.Struct, frozen=True, tag="done"):
    """It is done. After Begin, `held` says whether the disk holds the step it began after; after Anew, `epoch` is the
    one to write in."""

    held: bool = True
    epoch: int = -1


class Refused(msgspec.Struct, frozen=True, tag="refused"):
    """It cannot be: an error of `everstep.errors` by name, and its text. `wait_seconds`: ask again."""

    error: str
    text: str
    intact: int | None = None
    wait_seconds: float = 0.0


class Report(msgspec.Struct, frozen=True, tag="report"):
    """How the run is; `pid` of the trainer, 0 when it is gone."""

    run: str
    path: str
    pid: int
    health: Health


Message = Hello | Look | Forget | Share | Begin | Anew | Poke | Close | Welcome | Done | Refused | Report


def error_of(answer: Message) -> EverstepError:
    """The error that the keeper refused with, as if it had happened here."""
    if not isinstance(answer, Refused):
        return StoreFailed(f"the keeper answered with {type(answer).__name__}.")
    return as_raised(answer.error, answer.text, answer.intact)
