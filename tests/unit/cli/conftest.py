"""One small run, made once: three epochs, an older branch, several bases and segments. Tests work on copies."""

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

import everstep
from everstep.recover.inventory import Inventory, survey
from everstep.store.disk import existing

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
        run.wait()
        for step in range(run.acknowledged(), steps):
            net(torch.randn(4, 8, generator=torch.Generator().manual_seed(step))).square().sum().backward()
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
            run.commit()
            run.wait()


@pytest.fixture(scope="session")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("runs") / "run"
    train(path, 12)
    train(path, 20)
    train(path, 26, at=15)
    return path


@pytest.fixture
def run(original: Path, tmp_path: Path) -> Path:
    """A copy that a test may damage."""
    return shutil.copytree(original, tmp_path / "run")


@pytest.fixture(scope="session")
def odd(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("odd") / "run"
    train(path, 5, kind=Odd)
    return path


class Done:
    """What a command printed, and its exit code."""

    def __init__(self, code: int, out: str, err: str) -> None:
        self.code, self.out, self.err = code, out, err

    def json(self) -> Any:
        assert self.code in (0, 1), self.err
        return msgspec.json.decode(self.out)


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str]) -> Callable[..., Done]:
    """Run a command in this process."""
    from everstep.cli.main import main

    def call(*arguments: object) -> Done:
        capsys.readouterr()
        with pytest.raises(SystemExit) as end:
            main([str(argument) for argument in arguments])
        printed = capsys.readouterr()
        return Done(int(end.value.code or 0), printed.out, printed.err)

    return call


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
