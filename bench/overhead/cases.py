"""What is measured on what, and for how long."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from bench.peers import PEERS

SOURCES = ("gradient fp32", "gradient bf16", "state")
WARM_S = 2.0
"""An H200 is up to 3 % faster for a second after a pause, and varies by 0.2 % from then on."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Steps of every block, with everstep or without, and how often the whole row of blocks is repeated."""

    rounds: int
    warm: int
    """Before the clock is read for the first time. They count for what was recorded."""
    measured: int
    warm_s: float = WARM_S
    """And for so long, before these."""
    peer_s: float = 30.0
    """For the intervals of one peer. Every step is always measured, others while this lasts."""
    logged: bool = False
    """Whether the loop reads the loss after every step, as many do: then it waits for the device each time."""
    tight: bool = False
    """Whether the device has hardly more memory than training takes without everstep."""


@dataclass(frozen=True, slots=True)
class Job:
    """One program and all that is measured on it. A program is built and compiled once."""

    model: str
    compiled: bool
    plan: Plan
    sources: tuple[str, ...] = SOURCES
    peers: tuple[str, ...] = ()

    @property
    def label(self) -> str:
        kinds = {"logged": self.plan.logged, "tight": self.plan.tight}
        return " ".join(
            [self.model, "compiled" if self.compiled else "eager", *(kind for kind in kinds if kinds[kind])]
        )

    def cases(self) -> list[str]:
        return [f"{self.label}, {subject}" for subject in (*self.sources, *self.peers)]


QUICK = [Job("gpt-tiny", False, Plan(1, 6, 24, warm_s=0.0, peer_s=6.0), peers=("torch.save",))]
"""What two CPU cores measure within a minute: that it works, and roughly where it stands."""

FULL = [
    Job("gpt-124m", True, Plan(2, 20, 60, peer_s=15.0), peers=tuple(PEERS)),
    Job("gpt-355m", True, Plan(1, 16, 50, peer_s=15.0), peers=tuple(PEERS)),
    Job("gpt-774m", True, Plan(1, 10, 30)),
    Job("gpt-774m-short", True, Plan(1, 30, 150), sources=("gradient fp32", "state")),  # a base every hundred steps
    Job("gpt-1.5b", True, Plan(1, 16, 24)),
    Job("gpt-355m", True, Plan(1, 16, 50, logged=True), sources=("gradient fp32", "state")),
    Job("gpt-355m", True, Plan(1, 16, 50, tight=True), sources=("auto", "state")),
    Job("resnet-50", False, Plan(2, 16, 40)),
    Job("gpt-124m", False, Plan(1, 20, 60), sources=(*SOURCES, "layer fp32")),
    Job("gpt-355m", False, Plan(1, 16, 50)),
    Job("gpt-774m", False, Plan(1, 10, 30)),
    Job("gpt-1.5b", False, Plan(1, 16, 24)),
]


def chosen(jobs: Sequence[Job], only: Sequence[str]) -> list[Job]:
    """The jobs with those of their cases that hold one of the strings `only`; all of them if it is empty."""

    def wanted(job: Job, subjects: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(s for s in subjects if not only or any(text in f"{job.label}, {s}" for text in only))

    trimmed = (replace(job, sources=wanted(job, job.sources), peers=wanted(job, job.peers)) for job in jobs)
    return [job for job in trimmed if job.cases()]
