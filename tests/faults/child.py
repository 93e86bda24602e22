"""A training process for tests that end it from outside. Says what it does, one word per line.

python -m tests.faults.child RUN STEPS [workers | sigint | fork]
"""

import os
import signal
import sys
import time
from typing import Any

import torch
from torch import nn

import everstep


class Squares(torch.utils.data.Dataset[Any]):
    def __len__(self) -> int:
        return 64

    def __getitem__(self, at: int) -> torch.Tensor:
        return torch.full((8,), float(at)).sin()


def say(*words: object) -> None:
    os.write(1, (" ".join(str(word) for word in words) + "\n").encode())


def main(path: str, steps: int, how: str) -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)  # whoever runs tests in the background ignores it
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.1), nn.Linear(8, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    loader = everstep.Loader(Squares(), batch_size=4, shuffle=True, num_workers=2 if how == "workers" else 0)
    run = everstep.open(path, model=model, optimizer=optimizer, state={"data": loader})
    first = run.resume()
    say("resumed", first)
    batches = loader.endless()
    if how == "fork" and os.fork() == 0:
        say("child", os.getpid())
        try:
            run.commit()
        except everstep.errors.Misuse:
            say("refused")
        signal.pause()
    for _ in range(first, steps):
        model(next(batches)).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        say("step", run.commit())
        time.sleep(0.005)  # so that whoever listens can strike before the end
    run.wait(timeout=60)
    say("done", run.acknowledged(), model[0].weight.sum().item().hex())
    if how == "stay":
        signal.pause()
    run.close()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3] if len(sys.argv) > 3 else "")
