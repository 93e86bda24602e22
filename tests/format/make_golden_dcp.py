"""Writes tests/format/golden/v1_dcp: folders that everstep.dcp.Writer saved, from one rank and from two. Run once.

.venv/bin/python -m tests.format.make_golden_dcp
"""

import shutil
import tempfile
import warnings
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as torch_dcp
import torch.multiprocessing as mp
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

from everstep.dcp import Writer

HERE = Path(__file__).parent / "golden" / "v1_dcp"
WORLDS = (1, 2)


def state() -> dict[str, Any]:
    """A tensor that two ranks cut unevenly, one of another type, one without elements, one without axes, and values."""
    return {
        "model": {
            "rows": torch.arange(15.0).reshape(5, 3),
            "half": torch.tensor([[1.0, -2.0, 0.5]], dtype=torch.bfloat16),
            "empty": torch.empty(0, 3),
        },
        "step": torch.tensor(7.0),
        "epoch": 3,
        "schedule": {"name": "cosine", "rates": [0.5, 0.25]},
    }


def save(path: Path, held: dict[str, Any]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch says that this is one process
        torch_dcp.save(held, storage_writer=Writer(path))


def rank_of(rank: int, world: int, meeting: str) -> None:
    dist.init_process_group("gloo", store=dist.FileStore(meeting, world), rank=rank, world_size=world)
    held = state()
    held["model"]["rows"] = distribute_tensor(held["model"]["rows"], init_device_mesh("cpu", (world,)), [Shard(0)])
    save(HERE / f"saved{world}", held)
    dist.destroy_process_group()


def main() -> None:
    shutil.rmtree(HERE, ignore_errors=True)
    HERE.mkdir(parents=True)
    save(HERE / "saved1", state())
    with tempfile.TemporaryDirectory() as home:
        mp.spawn(rank_of, (2, f"{home}/meeting"), nprocs=2)  # type: ignore[no-untyped-call]
    for lease in HERE.rglob("everstep.lease"):
        lease.unlink()


if __name__ == "__main__":
    main()
