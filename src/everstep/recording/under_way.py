"""States that are not whole yet."""

from dataclasses import dataclass, field

from everstep.capture.mover import Parcel
from everstep.capture.snapshot import Fixed
from everstep.recording.plan import Plan
from everstep.ring.areas import Area


@dataclass(slots=True)
class Fill:
    """One that is being taken in parts: in which round it is, and of which step each parameter is."""

    area: Area
    fixed: Fixed
    plan: Plan
    low: int
    done: int = 0
    versions: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Late:
    """One of which a parcel is to be packed on the device before the optimizer's next step: the bus could not carry it
    in time. `alone`: nothing else holds its step."""

    area: Area
    parcel: Parcel
    sequence: int
    step: int
    alone: bool
