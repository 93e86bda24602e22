"""`dcp.load(state, storage_reader=Reader(path))`: no byte reaches the state before it is proved, and none is missing.

A checkpoint of `Writer` is read by its record; `.metadata` is hashed to find the record and never unpickled. One of
torch's own writer has no record: its `.metadata` is read without executing anything, boxes and places are checked,
every archive is compared with the CRC-32 in it, and `notes` says what that does not prove.
"""

import io
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from traceback import StackSummary
from typing import Any, cast

import torch.distributed as dist
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystem, FileSystemReader
from torch.distributed.checkpoint.metadata import Metadata, StorageMeta
from torch.distributed.checkpoint.planner import LoadPlan, LoadPlanner
from torch.distributed.checkpoint.storage import StorageReader
from torch.futures import Future

from everstep.dcp import describe, record, unproved
from everstep.dcp.guard import Guarded
from everstep.dcp.proving import GATHERED_BYTES, ProvingFile
from everstep.dcp.record import Record
from everstep.dcp.refusal import refusal
from everstep.dcp.target import located, required
from everstep.errors import Damaged, EverstepError, Misuse
from everstep.foreign.metadata import Index
from everstep.store.disk import LocalDisk


@dataclass(frozen=True, slots=True)
class Found:
    """What was committed when the load began. `identity` is the same for the same commit, and for no other."""

    index: Index
    record: Record | None
    identity: str


class Reader(StorageReader):
    """A StorageReader that refuses what it cannot prove to be whole. `notes` holds what could not be proved, and why.

    `path` may also be given to each `dcp.load` as `checkpoint_id`.
    """

    def __init__(self, path: str | os.PathLike[str] | None = None) -> None:
        super().__init__()
        self._path = None if path is None else located(path)
        self._found: Found | None = None
        self._metadata: Metadata | None = None
        self.notes: list[str] = []

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        if checkpoint_id is not None:
            self._path = located(checkpoint_id)
        self._found = self._metadata = None

    # Without **kwargs on purpose: with them torch asks again, for a rank's own metadata.
    def read_metadata(self) -> Metadata:
        """What is committed. A refusal is raised as torch's CheckpointException: torch 2.11 takes every Exception here
        for a sign that there is no checkpoint, and loses what it says."""
        try:
            self._found = found(self.path)
            metadata = describe.metadata(self._found.index)
        except EverstepError as refused:
            rank = dist.get_rank() if dist.is_initialized() else 0
            raise CheckpointException(str(refused), {rank: (refused, StackSummary())}) from refused
        metadata.storage_meta = StorageMeta(checkpoint_id=self.path)
        return metadata

    def set_up_storage_reader(self, metadata: Metadata, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:  # noqa: ARG002
        """Refuse, before anything is loaded, a checkpoint in which a part or a file is missing."""
        held = self._held()
        self._metadata = metadata
        self.notes = []
        record.covered(held.index, self.path)
        if held.record is not None:
            disk = LocalDisk(self.path)
            try:
                record.lengths(disk, held.record, self.path)
            finally:
                disk.release()

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        return replace(plan, storage_data=self._held().identity)

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        """Refuse when a save came between: some ranks would load the checkpoint before it, and others the new one."""
        if len({plan.storage_data for plan in plans}) > 1:
            raise Damaged(
                f"{self.path}: was replaced while the ranks began to load it. Nothing was loaded; load again."
            )
        return plans

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        held, places = self._held(), cast("Metadata", self._metadata).storage_data
        # In the order of the files: a block that several small tensors share is then read and proved once.
        items = sorted(
            plan.items, key=lambda item: (places[item.storage_index].relative_path, places[item.storage_index].offset)
        )
        theirs = FileSystemReader(self.path)
        theirs.storage_data = places
        if held.record is None:
            self._say(unproved.prove(self.path, [(i.storage_index.fqn, places[i.storage_index]) for i in items]))
        else:
            theirs.fs = Proving(self.path, held.record)
        guarded = cast("LoadPlanner", Guarded(planner, self.path))
        return theirs.read_data(replace(plan, items=items), guarded)

    @property
    def path(self) -> str:
        return required(self._path, "Reader(path), or to dcp.load")

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        return FileSystemReader.validate_checkpoint_id(checkpoint_id)

    def _held(self) -> Found:
        if self._found is None:
            raise Misuse("read_metadata() comes first: torch calls it before everything else.")
        return self._found

    def _say(self, notes: list[str]) -> None:
        self.notes = notes
        warnings.warn(f"{self.path}: {' '.join(notes)}", stacklevel=2)


class Proving(FileSystem):
    """torch's seam for where its bytes come from: data files that prove what they hand out."""

    def __init__(self, path: str, held: Record) -> None:
        self._path = path
        self._record = held
        self._numbers = {sealed.name: at for at, sealed in enumerate(held.files)}

    @contextmanager
    def create_stream(self, path: str | os.PathLike[str], mode: str) -> Iterator[Any]:  # noqa: ARG002
        name = os.path.basename(path)
        disk = LocalDisk(self._path)
        try:
            source = disk.source(name)
        except OSError as gone:  # replaced by another save since the load began
            raise Damaged(f"{self._path}: {name} cannot be opened any more ({gone.strerror}). Load again.") from gone
        finally:
            disk.release()
        try:
            file = ProvingFile(source, self._record, self._numbers[name], os.path.join(self._path, name))
            yield io.BufferedReader(file, GATHERED_BYTES)
        finally:
            source.close()


def found(path: str) -> Found:
    """What is committed at `path`; Damaged says what is missing and what is still good."""
    try:
        disk = LocalDisk(path)
    except (FileNotFoundError, NotADirectoryError) as none:
        raise refusal(path) from none
    try:
        identity, held = record.load(disk, path)
    except FileNotFoundError as none:
        raise refusal(path) from none
    finally:
        disk.release()
    index = unproved.index(path) if held is None else held.index(path)
    return Found(index, held, identity)
