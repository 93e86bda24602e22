"""DeepSpeed's way, by DeepSpeed itself: a ZeRO-3 checkpoint, its converter, its load of what that wrote.

Run by an interpreter that has deepspeed (`--deepspeed-python`), because its own torch may be another:

python -m bench.reshard.zero save|convert|load HOME WORLD cold|warm SHAPE

`SHAPE` is a `bench.models.Shape` as JSON. Prints what `gauge` saw, one JSON object per rank.
"""

import contextlib
import json
import os
import socket
import sys
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

os.environ.update(DS_ACCELERATOR="cpu", MASTER_ADDR="127.0.0.1", GLOO_SOCKET_IFNAME="lo")

import torch
import torch.multiprocessing as mp

from bench.models import GPT, Shape
from bench.reshard import gauge

TAG = "saved"
BUCKET = 20_000_000
"""Elements; the default takes 2 GB on each rank, for a gradient that is not what is measured."""


def main(verb: str, home: str, world: str, cache: str, shape: str) -> None:
    if verb == "convert":
        say(asdict(gauge.gauge(lambda: convert(Path(home)))))
        return
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
    given = (verb, Path(home), Shape(**json.loads(shape)), int(world), cache, port)
    mp.spawn(rank_of, given, nprocs=int(world))  # type: ignore[no-untyped-call]


def rank_of(rank: int, verb: str, home: Path, shape: Shape, world: int, cache: str, port: int) -> None:
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(world), MASTER_PORT=str(port))
    import deepspeed

    torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // world))
    with contextlib.redirect_stdout(sys.stderr):
        deepspeed.init_distributed("gloo")
        torch.manual_seed(0)
        model = GPT(shape)
        settings: dict[str, Any] = {
            "train_batch_size": world, "zero_optimization": {"stage": 3, "reduce_bucket_size": BUCKET},
            "zero_allow_untested_optimizer": True, "checkpoint": {"load_universal": verb == "load"},
        }  # fmt: skip
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
        engine = deepspeed.initialize(model=model, optimizer=optimizer, config=settings)[0]
        if verb == "save":
            tokens = torch.randint(0, shape.vocabulary, (1, 9))
            engine.backward(engine(tokens[:, :-1], tokens[:, 1:]))
            engine.step()
            said: dict[str, Any] = {"universal_checkpoint_info": {}}
            torch.distributed.barrier()
            taken = gauge.gauge(lambda: engine.save_checkpoint(str(home / "zero"), tag=TAG, client_state=said))
        else:
            if rank == 0:
                gauge.evict(home / "universal") if cache == "cold" else gauge.warm(home / "universal")
            torch.distributed.barrier()
            taken = gauge.gauge(lambda: engine.load_checkpoint(str(home / "universal"), tag=TAG))
    say(asdict(taken))
    torch.distributed.barrier()
    engine.destroy()
    torch.distributed.destroy_process_group()


def convert(home: Path) -> None:
    """As `ds_to_universal.py --input_folder .. --output_folder ..` does it, with the workers it uses by default."""
    from deepspeed.checkpoint.ds_to_universal import main as universal

    gauge.evict(home / "zero")
    with contextlib.redirect_stdout(sys.stderr):
        universal(
            SimpleNamespace(
                input_folder=str(home / "zero" / TAG), output_folder=str(home / "universal" / TAG),
                num_extract_workers=4, num_merge_workers=2, keep_temp_folder=False, strict=True,
                inject_missing_state=False,
            )
        )  # fmt: skip


def say(told: dict[str, Any]) -> None:
    os.write(1, f"{json.dumps(told)}\n".encode())


if __name__ == "__main__":
    main(*sys.argv[1:])
