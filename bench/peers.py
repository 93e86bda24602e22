"""What others offer today, each as its own documentation says to use it, behind one small shape.

All of them save the whole state: parameters, optimizer, buffers. One save is under way at a time; the next waits for
it. torch is enough for the first three; the others are measured where they are installed (`missing` says).
"""

import importlib.util
import os
import resource
import shutil
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Protocol

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn


class Peer(Protocol):
    """One way to save."""

    def start(self, model: nn.Module, optimizer: torch.optim.Optimizer, directory: Path) -> None: ...

    def save(self, step: int) -> None:
        """Called after the optimizer's step; returns when training may go on."""

    def busy(self) -> bool:
        """Whether the last save is still under way."""

    def finish(self) -> None:
        """Wait for it and let everything go, hooks included."""


class Shelf:
    """A new place for each checkpoint. Those before the last are removed beside training, as any retention does."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._places: list[Path] = []
        directory.mkdir(parents=True)

    def place(self, step: int) -> Path:
        self._places.append(self._directory / f"step-{step}")
        while len(self._places) > 2:
            threading.Thread(target=remove, args=(self._places.pop(0),)).start()
        return self._places[-1]


def remove(place: Path) -> None:
    shutil.rmtree(place) if place.is_dir() else place.unlink(missing_ok=True)


def whole(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    return {"model": model.state_dict(), "optimizer": optimizer.state_dict()}


def alone() -> None:
    """A process group of one, which some peers ask for; as many open files as allowed, which shared tensors need."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    if not dist.is_initialized():
        os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
        backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
        dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)


class TorchSave:
    """`torch.save`: training waits."""

    def start(self, model: nn.Module, optimizer: torch.optim.Optimizer, directory: Path) -> None:
        self._program, self._shelf = (model, optimizer), Shelf(directory)

    def save(self, step: int) -> None:
        torch.save(whole(*self._program), self._shelf.place(step))

    def busy(self) -> bool:
        return False

    def finish(self) -> None:
        pass


class DistributedCheckpoint:
    """`dcp.async_save` with its pinned stager: copied beside training, joined before the optimizer's next step, written
    by a thread or by a process of its own.

    torch 2.11 closes a stager after its first use, and the second fails; here it stays open, as in later versions.
    """

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self._staging: Future[Any] | None = None
        self._upload: Future[Any] | None = None

    def start(self, model: nn.Module, optimizer: torch.optim.Optimizer, directory: Path) -> None:
        from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions

        alone()
        self._program, self._shelf = (model, optimizer), Shelf(directory)
        cuda = torch.cuda.is_available()
        self._stager = DefaultStager(
            StagingOptions(
                use_pinned_memory=cuda,
                use_shared_memory=self._kind == "process",
                use_async_staging=True,
                use_non_blocking_copy=cuda,
            )
        )
        memory = self._stager._state_dict_stager
        self._let_go, memory.close = memory.close, lambda: None
        self._hook = optimizer.register_step_pre_hook(self._join)

    def save(self, step: int) -> None:
        from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType

        self._wait()
        answer = dcp.async_save(
            whole(*self._program),
            checkpoint_id=self._shelf.place(step),
            async_checkpointer_type=AsyncCheckpointerType(self._kind),
            async_stager=self._stager,
        )
        self._staging, self._upload = answer.staging_completion, answer.upload_completion

    def busy(self) -> bool:
        return self._upload is not None and not self._upload.done()

    def finish(self) -> None:
        self._hook.remove()
        self._wait()
        self._stager.close()
        self._let_go()

    def _join(self, *_: object) -> None:
        if self._staging is not None:
            self._staging.result()
            self._staging = None

    def _wait(self) -> None:
        self._join()
        if self._upload is not None:
            self._upload.result()
            self._upload = None


class TorchCheckpointing:
    """torch_checkpointing's manager: staged by a thread, written by a process, the optimizer's step under its lock."""

    def start(self, model: nn.Module, optimizer: torch.optim.Optimizer, directory: Path) -> None:
        from torch_checkpointing import CheckpointManager
        from torch_checkpointing.storage.filesystem import LocalFileSystemStorageConfig

        alone()
        self._program, self._shelf = (model, optimizer), Shelf(directory)
        # Its default, O_DIRECT, ends in EINVAL on ext4: the writes are not aligned.
        storage = LocalFileSystemStorageConfig(use_direct_io=False)
        self._manager = CheckpointManager(CheckpointManager.Config(storage_config=storage))
        self._written: Future[Any] | None = None
        lock = self._manager.lock()

        def enter(*_: object) -> None:
            lock.__enter__()

        def leave(*_: object) -> None:
            lock.__exit__(None, None, None)

        self._hooks = [optimizer.register_step_pre_hook(enter), optimizer.register_step_post_hook(leave)]

    def save(self, step: int) -> None:
        self._written = self._manager.save(str(self._shelf.place(step)), whole(*self._program))

    def busy(self) -> bool:
        return self._written is not None and not self._written.done()

    def finish(self) -> None:
        for hook in self._hooks:
            hook.remove()
        self._manager.close()


class LmResiliency:
    """lm-resiliency's tier in memory: pinned copies on a stream of their own; nothing reaches the disk here.

    As shipped, nothing joins the copy before the optimizer's next step.
    """

    def start(self, model: nn.Module, optimizer: torch.optim.Optimizer, directory: Path) -> None:
        from lm_resiliency.checkpointing.config import InMemoryCkptConfig
        from lm_resiliency.checkpointing.manager import InMemoryCheckpointManager

        self._program = (model, optimizer)
        config = InMemoryCkptConfig(
            interval=1,
            disk_flush_interval=0,
            disk_folder=str(directory),
            run_id="bench",
            pin_memory=torch.cuda.is_available(),
        )
        # Two slots instead of four: there is no second rank whose copy would be held here.
        self._memory = InMemoryCheckpointManager(config, parallelism_info=SimpleNamespace(has_natural_replicas=True))

    def save(self, step: int) -> None:
        self._memory.save(whole(*self._program), step)

    def busy(self) -> bool:
        copying = self._memory._completion_thread
        return copying is not None and copying.is_alive()

    def finish(self) -> None:
        self._memory.close()


class Nvrx:
    """NVIDIA resiliency extension's asynchronous `torch.save`: training waits for the copy, a process writes."""

    def start(self, model: nn.Module, optimizer: torch.optim.Optimizer, directory: Path) -> None:
        from nvidia_resiliency_ext.checkpointing.async_ckpt.torch_ckpt import TorchAsyncCheckpoint

        alone()
        self._program, self._shelf = (model, optimizer), Shelf(directory)
        self._checkpoint = TorchAsyncCheckpoint(persistent_queue=True)

    def save(self, step: int) -> None:
        while self.busy():
            time.sleep(0.005)
        self._checkpoint.async_save(whole(*self._program), str(self._shelf.place(step)))

    def busy(self) -> bool:
        """Its own blocking wait never ends when the writer has died, so nothing here uses that."""
        self._checkpoint.finalize_async_save(blocking=False)
        calls = self._checkpoint._get_async_calls_queue()
        waiting = calls.get_num_unfinalized_calls() > 0
        if waiting and not calls.persistent_caller.process.is_alive():
            calls.close(abort=True)
            raise RuntimeError("the writing process has ended without an answer")
        return waiting

    def finish(self) -> None:
        while self.busy():
            time.sleep(0.005)
        self._checkpoint.close()


PEERS: dict[str, Callable[[], Peer]] = {
    "torch.save": TorchSave,
    "DCP thread": lambda: DistributedCheckpoint("thread"),
    "DCP process": lambda: DistributedCheckpoint("process"),
    "torch_checkpointing": TorchCheckpointing,
    "lm-resiliency memory": LmResiliency,
    "NVRx torch.save": Nvrx,
}
NEEDS = {
    "torch_checkpointing": "torch_checkpointing",
    "lm-resiliency memory": "lm_resiliency",
    "NVRx torch.save": "nvidia_resiliency_ext",
}


def missing(name: str) -> str | None:
    """The package a peer needs and this Python does not have."""
    package = NEEDS.get(name)
    return package if package is not None and importlib.util.find_spec(package) is None else None
