"""The writers that hold a step together. Each is looked at when it is first asked for: most ranks need few of them."""

from collections.abc import Sequence

from everstep.errors import Damaged, NotARun, StepNotHeld
from everstep.log.inventory import survey
from everstep.recover import choose
from everstep.recover.choose import Route
from everstep.store import base
from everstep.store.base import Index
from everstep.store.disk import Disk


class Writers:
    """Of each, by its number: the routes to `step`, best first, and the index of the base that the best begins with."""

    def __init__(self, disk: Disk, url: str, epochs: Sequence[int], step: int) -> None:
        self.disk, self.step = disk, step
        self._url, self._epochs = url, epochs
        self._routes: dict[int, list[Route]] = {}
        self._indexes: dict[int, Index] = {}

    def __len__(self) -> int:
        return len(self._epochs)

    def routes(self, at: int) -> list[Route]:
        if at not in self._routes:
            try:
                found = survey(self.disk, self._url, rank=at, epoch=self._epochs[at])
            except (NotARun, StepNotHeld) as gone:
                raise Damaged(f"{self._url}: writer {at} has vanished since rank 0 looked. Start again.") from gone
            self._routes[at] = choose.routes(found, self.step)
        return self._routes[at]

    def index(self, at: int) -> Index:
        if at not in self._indexes:
            self._indexes[at] = base.load(self.disk, at, self.routes(at)[0].base)
        return self._indexes[at]

    @property
    def known(self) -> list[Index]:
        """Of those that were looked at."""
        return [self._indexes[at] for at in sorted(self._indexes)]
