"""`everstep import`: read, prove, plan, write. One base at the checkpoint's step, and a run that any program opens."""

from collections.abc import Callable
from dataclasses import dataclass

from everstep.foreign import recognise
from everstep.foreign.arrive.landing import land
from everstep.foreign.arrive.ledger import Ledger, ledger
from everstep.foreign.arrive.plan import plan
from everstep.foreign.arrive.wishes import Wishes
from everstep.foreign.found import Checkpoint, check, verify
from everstep.store import folder

Tick = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class Arrived:
    """What was made of what: the run's bytes, how many of the source's had checksums that are right."""

    checkpoint: Checkpoint
    step: int
    ledger: Ledger
    nbytes: int
    proved: int


def arrive(source: str, url: str, wishes: Wishes, tick: Tick = lambda _done, _total: None) -> Arrived:
    """Make a run at `url` of the checkpoint at `source`; nothing is left there if anything is wrong with it."""
    folder.refuse(url)  # before the work, not after it
    checkpoint = recognise.read(source)
    check(checkpoint)
    made = plan(checkpoint, wishes)
    reading = sum(part.place.nbytes for part in checkpoint.tensors if part.place.crc32 is not None)
    total = reading + sum(tensor.nbytes for tensor, _ in made.tensors.values())
    at = 0

    def done(count: int) -> None:
        nonlocal at
        at += count
        tick(min(at, total), total)

    proved = verify(checkpoint, done)
    at = reading
    nbytes = land(url, made, done)
    return Arrived(checkpoint, made.step, ledger(checkpoint, made, wishes), nbytes, proved)
