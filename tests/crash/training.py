"""A small real training, run in a forked child that reports to an observer: resumed, committed, acknowledged.

The parent has imported torch but never used it, so that forking is safe and a trial costs no import.
"""

import contextlib
import hashlib
import importlib
import os
import random
import sys
from collections.abc import Callable
from typing import Any

import torch

import everstep
from everstep import api
from everstep.keeper import launch
from everstep.store.disk import existing
from tests.beside import keep_here
from tests.crash.observer import in_child, watch

STEPS = 20
SETTINGS = {"segment_bytes": 12_000, "base_log_bytes_max": 14_000, "retain_bytes_max": 60_000, "digest_every": 5}


def train(path: str, steps: int, report: Callable[[str], None], *, wait_every: int = 0, created: Any = None) -> None:
    """Resume, train up to `steps`, close. `created` stands in for the function that opens the disk."""
    torch.set_num_threads(1)
    torch.manual_seed(7)
    random.seed(7)
    model = torch.nn.Sequential(
        torch.nn.Linear(8, 16), torch.nn.BatchNorm1d(16), torch.nn.ReLU(), torch.nn.Dropout(0.3), torch.nn.Linear(16, 4)
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 3, 0.9)
    made: list[Any] = []
    if created is not None:
        api.created = lambda where: made.append(created(where)) or made[-1]
    launch.start = keep_here(lambda where: made[-1] if made else existing(where))  # one end for both of them
    settings = everstep.Settings(**SETTINGS)
    run = everstep.open(path, model=model, optimizer=optimizer, state={"scheduler": scheduler}, settings=settings)
    done = run.resume()
    report(f"resumed {done} {digest(model, optimizer, scheduler)}")
    acknowledged = run.acknowledged()
    report(f"acknowledged {acknowledged}")
    for step in range(done + 1, steps + 1):
        generator = torch.Generator().manual_seed(step)
        loss = (model(torch.randn(12, 8, generator=generator)) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
        report(f"committed {run.commit()} {digest(model, optimizer, scheduler)}")
        if wait_every and step % wait_every == 0:
            run.wait(timeout=60)
        if run.acknowledged() > acknowledged:
            acknowledged = run.acknowledged()
            report(f"acknowledged {acknowledged}")
    run.close()
    report(f"acknowledged {run.health.acknowledged}")


def digest(model: Any, optimizer: Any, scheduler: Any) -> str:
    """Everything a training state is: parameters, buffers, optimizer, scheduler, generators."""
    found = hashlib.blake2b(digest_size=16)
    for name, tensor in model.state_dict().items():
        found.update(name.encode() + tensor.numpy().tobytes())
    for index, held in sorted(optimizer.state_dict()["state"].items()):
        for name, value in sorted(held.items()):
            found.update(f"{index} {name}".encode() + value.numpy().tobytes())
    groups = [{k: v for k, v in group.items() if k != "params"} for group in optimizer.param_groups]
    found.update(repr((groups, sorted(scheduler.state_dict().items()), random.getstate()[1][:8])).encode())
    found.update(torch.get_rng_state().numpy().tobytes())
    return found.hexdigest()


def preload(path: str) -> None:
    """Import here what a training imports on its way, so that no child does it again. Nothing is computed here."""
    seen: list[str] = []

    def work(report: Callable[[str], None]) -> None:
        before = set(sys.modules)
        train(path, 6, lambda _line: None)
        for name in [name for name in sys.modules if name not in before]:
            report(f"imported {name}")

    pid, reading = in_child(work)
    with os.fdopen(reading, "rb") as pipe:
        seen = [line.split()[1].decode() for line in pipe if line.startswith(b"imported")]
    os.waitpid(pid, 0)
    for name in seen:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)


def expected(path: str, steps: int) -> dict[int, str]:
    """The digest after every step of a run that nothing interrupts."""
    preload(f"{path}-preload")
    seen = watch(*in_child(lambda report: train(path, steps, report)))
    assert seen.ended, seen.failure
    assert seen.resumed is not None
    return {0: seen.resumed[1], **seen.committed}
