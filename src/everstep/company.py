"""Who trains together, and how they agree: a few words through torch's own store. No collective, no data."""

import json
import socket
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from itertools import count
from pathlib import Path
from typing import Any, Protocol

import torch

from everstep.errors import Damaged, Misuse, StoreFailed, as_raised

WAIT_SECONDS = 300.0
_opened = count()


class Company(Protocol):
    @property
    def rank(self) -> int: ...
    @property
    def world(self) -> int: ...

    def tell(self, key: str, text: str) -> None:
        """Let the others hear something, once."""

    def hear(self, key: str) -> str:
        """What someone tells under this key; waits for it."""


@dataclass(frozen=True, slots=True)
class Alone:
    """One process."""

    rank: int = 0
    world: int = 1

    def tell(self, key: str, text: str) -> None:
        raise Misuse(f"there is nobody to tell {key!r} {text!r}.")

    def hear(self, key: str) -> str:
        raise Misuse(f"there is nobody to tell {key!r}.")


class Together:
    """The ranks of torch's default process group, through the store it was made with."""

    def __init__(self, rank: int, world: int, store: Any) -> None:
        self.rank, self.world = rank, world
        self._store = store
        self._prefix = f"everstep/{next(_opened)}"

    def part(self, name: str) -> Any:
        """A store for something that these ranks do, apart from what else is in theirs."""
        from torch.distributed.distributed_c10d import PrefixStore

        return PrefixStore(f"{self._prefix}/{name}", self._store)

    def tell(self, key: str, text: str) -> None:
        self._store.set(f"{self._prefix}/{key}", text)

    def hear(self, key: str) -> str:
        try:
            self._store.wait([f"{self._prefix}/{key}"], timedelta(seconds=WAIT_SECONDS))
            return str(self._store.get(f"{self._prefix}/{key}").decode())
        except (RuntimeError, torch.distributed.DistStoreError) as silent:
            raise StoreFailed(
                f"rank {self.rank} waited {WAIT_SECONDS:.0f} s for {key!r} of another rank. Every rank must open the "
                "same runs in the same order; see what the others say. Nothing was changed."
            ) from silent


def host() -> str:
    """Which machine this is, or rather which kernel: containers of one share what it has read."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return socket.gethostname()


def company() -> Company:
    """The ranks that torch.distributed knows, or this process alone."""
    distributed = torch.distributed
    if not distributed.is_available() or not distributed.is_initialized() or distributed.get_world_size() == 1:
        return Alone()
    store = distributed.distributed_c10d._get_default_store()  # noqa: SLF001 there is no public way
    return Together(distributed.get_rank(), distributed.get_world_size(), store)


def meet(company: Company, key: str, decide: Callable[[list[str]], str], text: str) -> str:
    """Everyone says something; rank 0 decides, and everyone hears it. If it refuses, all of them do."""
    company.tell(f"{key}/{company.rank}", text)
    if company.rank == 0:
        said = [company.hear(f"{key}/{rank}") for rank in range(company.world)]
        try:
            company.tell(key, f"+{decide(said)}")
        except BaseException as refused:
            intact = refused.intact if isinstance(refused, Damaged) else None
            company.tell(key, f"-{json.dumps([type(refused).__name__, str(refused), intact])}")
            raise
    heard = company.hear(key)
    if heard.startswith("-"):
        kind, text, intact = json.loads(heard[1:])
        raise as_raised(kind, f"rank 0 refused: {text}", intact)
    return heard[1:]
