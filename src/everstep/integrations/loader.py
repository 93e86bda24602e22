"""A data loader that knows its place: no sample is skipped or repeated after a kill, by any number of workers or ranks.

The place is one for all ranks: which pass, and how many samples of its order all of them together have had. So another
number of ranks, or another batch size, goes on from there. Workers fetch ahead, so samples are counted where batches
are handed out, not where they are fetched; after a resume the order is drawn again from its seed.
"""

from collections.abc import Iterator, Sized
from typing import Any, cast

import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, Sampler

from everstep.company import company
from everstep.errors import Misuse
from everstep.types import DataPlace


class Order:
    """The samples of a pass, in an order that depends on seed and pass alone."""

    def __init__(self, length: int, *, shuffle: bool, seed: int) -> None:
        self.length, self.shuffle, self.seed = length, shuffle, seed

    def of(self, epoch: int) -> list[int]:
        if not self.shuffle:
            return list(range(self.length))
        source = torch.Generator().manual_seed((self.seed * 0x9E3779B97F4A7C15 + epoch) % (1 << 63))
        return cast("list[int]", torch.randperm(self.length, generator=source).tolist())


class Share(Sampler[list[int]]):
    """One rank's part of every batch, from a place in a pass on. A batch is what all ranks consume in one step."""

    def __init__(self, order: Order, batch_size: int, rank: int, world: int, *, drop_last: bool) -> None:
        self._order, self._size = order, batch_size * world
        self._rank, self._world = rank, world
        self._least = self._size if drop_last else world
        self.epoch = self.start = 0

    def __len__(self) -> int:
        return len(self.spans(self.start))

    def __iter__(self) -> Iterator[list[int]]:
        samples = self._order.of(self.epoch)
        for low, high in self.spans(self.start):
            first, end = (low + (high - low) * at // self._world for at in (self._rank, self._rank + 1))
            yield samples[first:end]

    def spans(self, start: int) -> list[tuple[int, int]]:
        """The batches from there to the end of the pass; a last one in which some rank would get nothing is none."""
        length = self._order.length
        found = [(low, min(low + self._size, length)) for low in range(start, length, self._size)]
        return [(low, high) for low, high in found if high - low >= self._least]


class Loader:
    """A torch DataLoader over a map-style dataset that can go on where it stopped. Put it into `state=`.

    Takes DataLoader's arguments. One `for` is one pass over the data, or what is left of it; `endless()` goes on from
    pass to pass. Where several ranks train, `rank` and `world` say which part of each batch is read here: the place
    among the ranks that read different data (its data-parallel rank), and their number; `batch_size` is one rank's.
    Fewer samples than ranks at the end of a pass are left out. Random numbers drawn inside workers restart with the
    pass: seed them from the sample's index.
    """

    def __init__(
        self,
        dataset: Any,
        batch_size: int = 1,
        *,
        shuffle: bool = False,
        seed: int = 0,
        drop_last: bool = False,
        rank: int | None = None,
        world: int | None = None,
        **options: Any,
    ) -> None:
        if isinstance(dataset, IterableDataset) or not isinstance(dataset, Sized):
            raise Misuse(
                "everstep.Loader needs a dataset with a length; for a stream use torchdata's StatefulDataLoader in "
                "state=."
            )
        if clash := {"sampler", "batch_sampler", "generator"} & options.keys():
            raise Misuse(f"everstep.Loader decides the order itself: leave out {sorted(clash)}.")
        if batch_size < 1:
            raise Misuse(f"everstep.Loader: a batch has at least 1 sample, not {batch_size!r}.")
        self._order = Order(len(dataset), shuffle=shuffle, seed=seed)
        self.place = DataPlace(*_place(rank, world))
        """Random numbers go on with whoever reads this part of the data."""
        self._share = Share(self._order, batch_size, self.place.rank, self.place.world, drop_last=drop_last)
        self._loader: DataLoader[Any] = DataLoader(
            cast("Dataset[Any]", dataset), batch_sampler=self._share, generator=torch.Generator(), **options
        )
        self._setup = [len(dataset), shuffle, seed]
        self._epoch = 0
        self._samples = 0

    def __len__(self) -> int:
        """Batches in a whole pass."""
        return len(self._share.spans(0))

    def __iter__(self) -> Iterator[Any]:
        """The rest of this pass; a whole one when the last is used up."""
        self._share.epoch, self._share.start = self._epoch, self._samples
        generator = self._loader.generator
        assert generator is not None
        generator.manual_seed(
            self._order.seed * 1_000_003 + self._epoch
        )  # the workers' seed: the global generator stays untouched
        for (_, end), batch in zip(self._share.spans(self._samples), self._loader, strict=True):
            self._samples = end
            yield batch
        self._epoch, self._samples = self._epoch + 1, 0

    def endless(self) -> Iterator[Any]:
        """Batches for ever, pass after pass."""
        if not len(self):
            raise Misuse("the loader has no batches: the dataset is smaller than one batch and drop_last is set.")
        while True:
            yield from self

    def state_dict(self) -> dict[str, Any]:
        """Where all ranks are: which pass, and how many of its samples were handed out."""
        return {"epoch": self._epoch, "samples": self._samples, "setup": list(self._setup)}

    def load_state_dict(self, state: dict[str, Any], /) -> None:
        if state["setup"] != self._setup:
            raise Misuse(
                f"the data was read with (samples, shuffle, seed) = {state['setup']}, this loader has {self._setup}. "
                "With another order no place in it means anything."
            )
        self._epoch, self._samples = int(state["epoch"]), int(state["samples"])


class Place:
    """Says which part of the data a rank reads where another loader reads it: its data-parallel rank, and their number.
    Put it into `state=`."""

    def __init__(self, rank: int, world: int) -> None:
        self.place = DataPlace(*_place(rank, world))

    def state_dict(self) -> dict[str, Any]:
        return {}  # it is the program's to say

    def load_state_dict(self, state: dict[str, Any], /) -> None:
        pass


def _place(rank: int | None, world: int | None) -> tuple[int, int]:
    """Which part of each batch is read here. Several ranks that do not say would all read the same."""
    if rank is None and world is None:
        if (ranks := company().world) > 1:
            raise Misuse(
                f"everstep.Loader: {ranks} ranks train together, and each must say which part of a batch it reads: "
                "Loader(..., rank=r, world=n) with its data-parallel rank, or rank=0, world=1 if all read the same."
            )
        return 0, 1
    if rank is None or world is None or not 0 <= rank < world:
        raise Misuse(f"rank {rank!r} of {world!r} that read different data cannot be.")
    return rank, world
