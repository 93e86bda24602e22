"""A training process that takes memory, for tests that give it little. Says what it does, one line per thing.

python -m tests.faults.heavy RUN STEPS GREED_MIB [RANK WORLD]
"""

import sys

import torch
import torch.distributed as dist
from torch import nn

import everstep
from tests.faults.child import say

WIDTH = 1024
LAYERS = 8
"""32 MiB of parameters: gradients as much, the state three times."""


def main(path: str, steps: int, greed: int, rank: int, world: int) -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    if world > 1:
        dist.init_process_group("gloo", store=dist.FileStore(f"{path}.store", world), rank=rank, world_size=world)
    model = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    hoard = []
    with everstep.open(path, model=model, optimizer=optimizer) as run:
        first = run.resume()
        origins = {item.origin.partition(" of")[0] for item in run.ledger or ()}
        say("resumed", first, *sorted(origins))
        link = run._link
        areas = link.areas.count * run._recording._states._sizes.state_bytes  # type: ignore[union-attr]
        say("holds", (link.ring.block.nbytes + areas) >> 20)
        for step in range(first, steps):
            torch.manual_seed(step)
            model(torch.randn(4, WIDTH)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            run.commit()
            say("memory", run.acknowledged("memory"))
            hoard.append(torch.ones(greed << 20, dtype=torch.uint8))
        say("done", model[0].weight.sum().item().hex())
    if world > 1:
        dist.destroy_process_group()


if __name__ == "__main__":
    where, *numbers = sys.argv[1:]
    main(where, *(int(number) for number in [*numbers, *"01"[len(numbers) - 2 :]][:4]))
