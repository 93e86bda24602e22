"""Small runs, and what tests do to them. Bases fall on the same steps every time: each is waited for."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import torch

import everstep
from everstep.log.inventory import Inventory, survey
from everstep.recover.verify import Report, verify
from everstep.store import document, names
from everstep.store.disk import existing, publish
from everstep.store.manifest import load_newest

NAME = "we\x1b[31mird"
"""A parameter whose name would colour the terminal."""


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.first = torch.nn.Linear(8, 8)
        self.norm = torch.nn.BatchNorm1d(8)
        self.register_parameter(NAME, torch.nn.Parameter(torch.ones(8)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(self.first(x)) * getattr(self, NAME)


class Odd(torch.optim.SGD):
    """Not torch's own: only its program can replay it."""


def train(
    path: Path, steps: int, *, at: int | None = None, kind: type[torch.optim.Optimizer] = torch.optim.AdamW
) -> None:
    """Resume at `at`, or at the newest step, and train up to `steps`; every step is durable before the next."""
    net = Net()
    optimizer = kind(net.parameters(), lr=1e-2)  # type: ignore[call-arg]
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 4)
    settings = everstep.Settings(segment_bytes=4096, base_log_bytes_max=6000, digest_every=5)
    with everstep.open(path, model=net, optimizer=optimizer, state={"lr": scheduler}, settings=settings) as run:
        run.resume(at)
        settle(run)
        for step in range(run.acknowledged(), steps):
            net(torch.randn(4, 8, generator=torch.Generator().manual_seed(step))).square().sum().backward()
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
            run.commit()
            settle(run)


def settle(run: everstep.Run) -> None:
    """Wait until everything that was committed is durable, bases included."""
    run.wait(timeout=60)
    assert run._link.wait_for_base(60.0)


def trained(path: Path, steps: int = 8) -> Path:
    """A run of a few steps with several bases and segments."""
    torch.manual_seed(1)
    net = torch.nn.Linear(6, 6)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    settings = everstep.Settings(segment_bytes=2048, base_log_bytes_max=3000, digest_every=3)
    with everstep.open(path, model=net, optimizer=optimizer, settings=settings) as run:
        run.resume()
        for _ in range(steps):
            net(torch.ones(2, 6)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            run.commit()
            settle(run)
    return path


def torn(path: Path) -> Path:
    """A run that lost power while a record was being written."""
    trained(path)
    disk = existing(str(path))
    manifest = load_newest(disk, 0)
    assert manifest is not None
    last = max(manifest.segments, key=lambda entry: entry.sequence)
    growing = msgspec.structs.replace(last, nbytes=None, last_step=None)
    reopened = msgspec.structs.replace(manifest, segments=(*manifest.segments[:-1], growing), state="open")
    publish(disk, names.manifest(0, manifest.epoch), document.pack("manifest", reopened))
    with (path / names.segment(0, last.epoch, last.sequence)).open("ab") as file:
        file.write(b"ESR1" + bytes(99))
    disk.release()
    return path


class Done:
    """What a command printed, and its exit code."""

    def __init__(self, code: int, out: str, err: str) -> None:
        self.code, self.out, self.err = code, out, err

    def json(self) -> Any:
        assert self.code in (0, 1), self.err
        return msgspec.json.decode(self.out)


def python(code: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)], capture_output=True, text=True, timeout=120, check=False
    )


def look(path: Path, epoch: int | None = None) -> Inventory:
    disk = existing(str(path))
    try:
        return survey(disk, str(path), epoch=epoch)
    finally:
        disk.release()


def flip(path: Path, offset: int) -> None:
    """Turn one byte of a file over; negative offsets count from its end."""
    data = bytearray(path.read_bytes())
    data[offset] ^= 0xFF
    path.write_bytes(data)


def contents(path: Path) -> dict[str, bytes]:
    """Every file under a directory."""
    return {str(p.relative_to(path)): p.read_bytes() for p in sorted(path.rglob("*")) if p.is_file()}


def proved(path: Path) -> Report:
    disk = existing(str(path))
    try:
        return verify(disk, str(path))
    finally:
        disk.release()
