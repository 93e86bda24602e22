"""`dcp.save(state, storage_writer=Writer(path))`: the files that torch writes, with a record, and committed as one.

torch's own FileSystemWriter makes every byte of the data files and of `.metadata`, so that its reader reads them
without us. It writes through `SealedFiles`, which hashes and syncs; what it would do in place (open, rename, remove) is
done by `folder` instead. The order is that of `StorageWriter`: all ranks plan, the coordinator begins, all ranks write,
the coordinator commits. No rank talks to another outside of these meetings.
"""

import dataclasses
import io
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch.distributed.checkpoint.filesystem import FileSystem, FileSystemWriter
from torch.distributed.checkpoint.metadata import Metadata, StorageMeta
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner
from torch.distributed.checkpoint.storage import StorageWriter, WriteResult
from torch.futures import Future

from everstep.dcp import describe, folder, names
from everstep.dcp.folder import Begun
from everstep.dcp.record import Sealed
from everstep.dcp.sealing import SealedFiles
from everstep.dcp.target import located, required
from everstep.errors import Misuse, StoreFailed, Unsupported
from everstep.store.disk import LocalDisk


@dataclasses.dataclass(frozen=True, slots=True)
class Written:
    """What a rank reports of one item: torch's own place of it, and the file that it is in."""

    info: Any
    file: Sealed


class Writer(StorageWriter):
    """A StorageWriter whose checkpoint exists when all of it is durable, and not before.

    `path` may also be given to each `dcp.save` as `checkpoint_id`. A checkpoint that is there already stays readable
    until the new one takes its place. `threads` is how many files a rank writes at once.
    """

    def __init__(self, path: str | os.PathLike[str] | None = None, *, threads: int = 1) -> None:
        super().__init__()
        self._path = None if path is None else located(path)
        self._threads = threads
        self._save = ""
        self._begun: Begun | None = None

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        if checkpoint_id is not None:
            self._path = located(checkpoint_id)

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:  # noqa: ARG002
        if not kwargs.get("use_collectives", True):
            raise Unsupported(
                "use_collectives=False: no rank then knows when the others' files are durable, so there is no moment "
                "at which the checkpoint could be committed. Save with collectives, or with torch's own writer."
            )
        self._save = os.urandom(names.SAVE_DIGITS // 2).hex()

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        return plan

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        """Refuse a plan with a hole or an overlap, then make the folder ready for all ranks."""
        describe.planned(plans)
        self._begun = folder.begin(self.path)
        return FileSystemWriter(self.path).prepare_global_plan(plans)

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        """Write this rank's items, hashed and durable, under names that only this save uses."""
        disk = self._seen()
        try:
            theirs, files = FileSystemWriter(self.path, sync_files=False, thread_count=self._threads), SealedFiles(disk)
            theirs.fs = Sealing(files)
            prefix = dataclasses.replace(plan.storage_data, prefix=f"{plan.storage_data.prefix}{self._save}_")
            results = theirs.write_data(dataclasses.replace(plan, storage_data=prefix), planner).wait()
            sealed = files.sealed()
        finally:
            disk.release()
        done: Future[list[WriteResult]] = Future()
        done.set_result([
            dataclasses.replace(one, storage_data=Written(one.storage_data, sealed[one.storage_data.relative_path]))
            for one in results
        ])  # fmt: skip
        return done

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        """Commit, if every part of every tensor was written. Called on the coordinator, when all ranks are done."""
        if self._begun is None:
            raise Misuse("finish() came before prepare_global_plan(): torch calls them in this order.")
        begun, self._begun = self._begun, None
        try:
            every = [one for rank in results for one in rank]
            files = {one.storage_data.file.name: one.storage_data.file for one in every}
            bare = [dataclasses.replace(one, storage_data=one.storage_data.info) for one in every]
            record = describe.written(metadata, {one.index: one.storage_data for one in bare}, files, begun.replaces)
            folder.commit(begun, record, self._serialized(metadata, bare))
        finally:
            folder.release(begun)

    def storage_meta(self) -> StorageMeta:
        return StorageMeta(checkpoint_id=self.path, save_id=self._save)

    @property
    def path(self) -> str:
        return required(self._path, "Writer(path), or to dcp.save")

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        return FileSystemWriter.validate_checkpoint_id(checkpoint_id)

    def __getstate__(self) -> dict[str, Any]:
        """What goes to torch's checkpoint process: no save that this process has under way."""
        return {**self.__dict__, "_begun": None}

    def _seen(self) -> LocalDisk:
        where = folder.growing(self.path)
        try:
            return LocalDisk(where)
        except FileNotFoundError as none:
            raise StoreFailed(
                f"{where}: the coordinator made this folder, and this rank does not see it. All ranks must save to one "
                "file system."
            ) from none

    def _serialized(self, metadata: Metadata, results: list[WriteResult]) -> bytes:
        """The bytes of `.metadata` as torch itself writes them."""
        theirs, memory = FileSystemWriter(self.path, sync_files=False), InMemory()
        theirs.fs, theirs.save_id = memory, self._save
        theirs.finish(metadata, [results])
        return memory.content.getvalue()


class Sealing(FileSystem):
    """torch's seam for where its bytes go: into files that are hashed and synced."""

    def __init__(self, files: SealedFiles) -> None:
        self._files = files

    @contextmanager
    def create_stream(self, path: str | os.PathLike[str], mode: str) -> Iterator[Any]:  # noqa: ARG002
        with self._files.writing(path) as file:
            yield file


class InMemory(FileSystem):
    """The same seam, for the one small file that is committed by us and not by torch."""

    def __init__(self) -> None:
        self.content = io.BytesIO()

    @contextmanager
    def create_stream(self, path: str | os.PathLike[str], mode: str) -> Iterator[Any]:  # noqa: ARG002
        yield self.content

    def exists(self, path: str | os.PathLike[str]) -> bool:  # noqa: ARG002
        return False

    def rename(self, path: str | os.PathLike[str], new_path: str | os.PathLike[str]) -> None:
        """Nothing has a name here."""
