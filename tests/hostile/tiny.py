"""A small real run, held in memory, and `prove`, which reads every byte of it that counts."""

import hashlib
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import xxhash

import everstep
from everstep.capture.tensors import view
from everstep.codec import tree
from everstep.log.inventory import survey
from everstep.recover import choose, load
from everstep.recover.replay import read
from everstep.store.disk import Source

Files = dict[str, bytes]
W = "w00000/"


class _Bytes:
    """`Source` over bytes."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self.size = len(data)

    def read(self, offset: int, length: int) -> bytes:
        if offset + length > self.size:
            raise EOFError("the file ends")
        return self._data[offset : offset + length]

    def read_into(self, offset: int, target: memoryview) -> None:
        target[:] = self.read(offset, len(target))

    def expect(self, offset: int, length: int) -> None:
        pass

    def close(self) -> None:
        pass


class Memory:
    """A run's directory for reading only: whoever writes to it fails."""

    def __init__(self, files: Files) -> None:
        self.files = files

    def names(self, directory: str) -> list[str]:
        prefix = f"{directory}/" if directory else ""
        rest = {path.removeprefix(prefix) for path in self.files if path.startswith(prefix)}
        if not rest:
            raise FileNotFoundError(directory)
        return sorted({name.partition("/")[0] for name in rest})

    def exists(self, path: str) -> bool:
        return path in self.files

    def source(self, path: str) -> Source:
        if path not in self.files:
            raise FileNotFoundError(path)
        return _Bytes(self.files[path])


def prove(disk: Any) -> tuple[Any, ...]:
    """Read everything the run claims to hold. Returns what it says; raises EverstepError for what it cannot prove."""
    inventory = survey(disk, "run")
    for damage in inventory.damages:
        raise damage
    choose.routes(inventory)
    said: list[Any] = [inventory.identity.run, inventory.newest, tuple(inventory.spans())]
    for located, body in read(disk, inventory.records.values()):
        blobs = body.blobs
        tensors = {name: view(memory, tensor) for name, (tensor, memory) in blobs.items()}
        for item in (*body.head.context.values(), *body.head.groups.values()):
            tree.decode(item, tensors.__getitem__)
        told = xxhash.xxh3_128_hexdigest(b"".join(bytes(memory) for _, memory in blobs.values()))
        said.append((located.step, located.frame.kind, repr(body.head), told))
    for entry in inventory.bases:
        index, tensors = load.load(disk, 0, entry)
        said.append((entry.step, entry.epoch, index.content.state, len(tensors)))
    return tuple(said)


def program() -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(3)
    model = torch.nn.Linear(3, 2)
    return model, torch.optim.AdamW(model.parameters(), lr=0.1)


def train(path: Path, steps: int, *, crash: Path | None = None, **settings: int) -> int:
    """Go on with the run for some steps. With `crash`, what a power cut at the end would leave is copied there."""
    model, optimizer = program()
    chosen = everstep.Settings(**{"segment_bytes": 2500, "base_log_bytes_max": 9000, "digest_every": 2} | settings)
    run = everstep.open(path, model=model, optimizer=optimizer, settings=chosen)
    run.resume()
    run.wait()
    for at in range(steps):
        optimizer.zero_grad()
        model(torch.full((1, 3), 1.0 + at)).square().sum().backward()
        optimizer.step()
        run.commit()
        run.wait()
        assert run._link.wait_for_base(60.0)  # which steps have a base is then the same every time
    if crash is not None:
        shutil.copytree(path, crash)
    run.close()
    return run.acknowledged()


def files_of(path: Path) -> Files:
    return {str(file.relative_to(path)): file.read_bytes() for file in sorted(path.rglob("*")) if file.is_file()}


def write_files(files: Files, path: Path) -> Path:
    for name, data in files.items():
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_bytes(data)
    return path


def flipped(data: bytes, bit: int) -> bytes:
    changed = bytearray(data)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


def seed_of(text: str) -> int:
    return int(hashlib.sha256(text.encode()).hexdigest()[:8], 16)


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Files, Files]:
    """A closed run of two epochs, and the same run as a crash would have left it."""
    where = tmp_path_factory.mktemp("tiny")
    train(where / "run", 5)
    train(where / "run", 4, crash=where / "crashed")
    return files_of(where / "run"), files_of(where / "crashed")
