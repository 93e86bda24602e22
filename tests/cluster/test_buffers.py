"""Buffers that differ from rank to rank: each gets its own back, and in another layout those of whom it goes on for."""

from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn

import everstep
from tests import worlds

STEPS = 4


class Counted(nn.Module):
    """A layer that counts what its rank has seen, and has always been told its number."""

    def __init__(self, rank: int) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(3, 2)
        self.register_buffer("seen", torch.zeros(()))
        self.register_buffer("number", torch.tensor(float(rank)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen += x.sum()
        return self.layer(x)


def trained(rank: int, world: int, path: Path, results: "mp.SimpleQueue[tuple[int, list[float], str]]") -> None:
    """Trains if the run is new; else says what came back."""
    worlds.met(rank, world, path.parent, f"of {world}, {path.exists()}")
    model = nn.parallel.DistributedDataParallel(Counted(rank), broadcast_buffers=False)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    with everstep.open(path, model=model, optimizer=optimizer) as run:
        first = run.resume()
        if first == 0:
            for _ in range(STEPS):
                model(torch.full((1, 3), float(rank + 1))).square().sum().backward()
                optimizer.step()
                optimizer.zero_grad()
                run.commit()
            run.wait(timeout=60)
        else:
            assert run.ledger is not None
            (origin,) = [item.origin for item in run.ledger if item.name == "seen"]
            results.put((rank, [float(model.module.seen), float(model.module.number)], origin))
    dist.destroy_process_group()


@pytest.mark.parametrize(("world", "whose"), [(2, [0, 1]), (3, [0, 1, 0]), (1, [0])])
def test_each_rank_goes_on_with_the_buffers_of_its_writer(world: int, whose: list[int], tmp_path: Path) -> None:
    results: mp.SimpleQueue[tuple[int, list[float], str]] = worlds.context.SimpleQueue()
    worlds.spawn(trained, (2, tmp_path / "run", results), 2)
    worlds.spawn(trained, (world, tmp_path / "run", results), world)
    told = sorted(results.get() for _ in range(world))
    assert [values for _, values, _ in told] == [[3.0 * (at + 1) * STEPS, float(at)] for at in whose]
    assert [origin.split(",")[0] for _, _, origin in told] == [f"writer {at}" for at in whose]
