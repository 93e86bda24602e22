"""The training loop of the demo. With a directory it uses everstep, without one it does not; nothing else differs.

python examples/train.py --steps 120 --run runs/demo
"""

import argparse
import sys
import time
from typing import Any

import torch
from small_gpt import SmallGPT, Text

import everstep
from everstep.capture.digests import digest
from everstep.types import combine

BATCH, LENGTH = 8, 128


class Program:
    """Model, optimizer, scheduler and data, always the same at the start."""

    def __init__(self, steps: int) -> None:
        torch.manual_seed(1)
        self.model = SmallGPT(length=LENGTH)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=3e-3, weight_decay=0.1)
        self.scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(self.optimizer, steps)
        self.loader = everstep.Loader(Text(LENGTH), batch_size=BATCH, shuffle=True, drop_last=True)
        self.batches = self.loader.endless()

    def open(self, url: str) -> everstep.Run:
        state: dict[str, Any] = {"scheduler": self.scheduler, "data": self.loader}
        return everstep.open(url, model=self.model, optimizer=self.optimizer, state=state)

    def step(self) -> float:
        loss = self.model(next(self.batches))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.scheduler.step()
        self.optimizer.zero_grad()
        return loss.item()

    def digest(self) -> str:
        """One number for parameters, optimizer state and the random generator."""
        tensors = {name: p.detach() for name, p in self.model.named_parameters()}
        for name, p in self.model.named_parameters():
            tensors |= {f"{name}/{key}": value for key, value in self.optimizer.state[p].items()}
        tensors["generator"] = torch.get_rng_state()
        return combine(zip(tensors, digest(list(tensors.values())), strict=True))


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("--steps", type=int, default=120)
    options.add_argument("--run")
    chosen = options.parse_args()
    program = Program(chosen.steps)
    run = program.open(chosen.run) if chosen.run else None
    began = time.perf_counter()
    first = run.resume() if run else 0
    say("resumed", first, time.perf_counter() - began)
    for step in range(first, chosen.steps):
        loss = program.step()
        if run:
            run.commit()
        say("step", step + 1, loss)
    if run:
        run.close()
    say("digest", program.digest())


def say(*words: object) -> None:
    """To whoever watches, at once."""
    sys.stdout.write(" ".join(str(word) for word in words) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
