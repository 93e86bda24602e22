"""A data loader that knows its place: after a kill no sample is skipped or repeated, with any number of workers.

Workers fetch ahead, so the place is counted where batches are handed out, not where they are fetched; after a resume
the order is drawn again from its seed and the batches already handed out are passed over without loading them.
"""

from collections.abc import Iterator, Sized
from typing import Any, cast

import torch
from torch.utils.data import BatchSampler, DataLoader, Dataset, IterableDataset, Sampler

from everstep.errors import Misuse


class Order(Sampler[int]):
    """The samples of one pass, in an order that depends on seed and pass alone."""

    def __init__(self, length: int, *, shuffle: bool, seed: int) -> None:
        self._length = length
        self._shuffle = shuffle
        self._seed = seed
        self.epoch = 0

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[int]:
        if not self._shuffle:
            return iter(range(self._length))
        source = torch.Generator().manual_seed((self._seed * 0x9E3779B97F4A7C15 + self.epoch) % (1 << 63))
        return iter(torch.randperm(self._length, generator=source).tolist())


class _Rest(Sampler[list[int]]):
    """The batches of a pass that were not handed out yet."""

    def __init__(self, batches: BatchSampler) -> None:
        self._batches = batches
        self.skip = 0

    def __len__(self) -> int:
        return len(self._batches) - self.skip

    def __iter__(self) -> Iterator[list[int]]:
        for at, batch in enumerate(self._batches):
            if at >= self.skip:
                yield batch


class Loader:
    """A torch DataLoader over a map-style dataset that can go on where it stopped. Put it into `state=`.

    Takes DataLoader's arguments. One `for` is one pass over the data, or what is left of it; `endless()` goes on from
    pass to pass. Random numbers drawn inside workers restart with the pass: seed them from the sample's index.
    """

    def __init__(
        self,
        dataset: Any,
        batch_size: int = 1,
        *,
        shuffle: bool = False,
        seed: int = 0,
        drop_last: bool = False,
        **options: Any,
    ) -> None:
        if isinstance(dataset, IterableDataset) or not isinstance(dataset, Sized):
            raise Misuse(
                "everstep.Loader needs a dataset with a length; for a stream use torchdata's StatefulDataLoader in "
                "state=."
            )
        if clash := {"sampler", "batch_sampler", "generator"} & options.keys():
            raise Misuse(f"everstep.Loader decides the order itself: leave out {sorted(clash)}.")
        self._order = Order(len(dataset), shuffle=shuffle, seed=seed)
        self._rest = _Rest(BatchSampler(self._order, batch_size, drop_last))
        self._loader: DataLoader[Any] = DataLoader(
            cast("Dataset[Any]", dataset), batch_sampler=self._rest, generator=torch.Generator(), **options
        )
        self._setup = [len(dataset), batch_size, shuffle, seed, drop_last]
        self._epoch = 0
        self._taken = 0

    def __len__(self) -> int:
        """Batches in a whole pass."""
        return len(self._rest) + self._rest.skip

    def __iter__(self) -> Iterator[Any]:
        """The rest of this pass; a whole one when the last is used up."""
        self._order.epoch, self._rest.skip = self._epoch, self._taken
        generator = self._loader.generator
        assert generator is not None
        generator.manual_seed(
            self._setup[3] * 1_000_003 + self._epoch
        )  # the workers' seed: the global generator stays untouched
        for batch in self._loader:
            self._taken += 1
            yield batch
        self._epoch, self._taken = self._epoch + 1, 0

    def endless(self) -> Iterator[Any]:
        """Batches for ever, pass after pass."""
        if not len(self):
            raise Misuse("the loader has no batches: the dataset is smaller than one batch and drop_last is set.")
        while True:
            yield from self

    def state_dict(self) -> dict[str, Any]:
        """Where we are: which pass, and how many of its batches were handed out."""
        return {"epoch": self._epoch, "taken": self._taken, "setup": list(self._setup)}

    def load_state_dict(self, state: dict[str, Any], /) -> None:
        if state["setup"] != self._setup:
            raise Misuse(
                f"the data was read with (samples, batch size, shuffle, seed, drop_last) = {state['setup']}, this "
                f"loader has {self._setup}. "
                "With another order no place in it means anything."
            )
        self._epoch, self._taken = int(state["epoch"]), int(state["taken"])
