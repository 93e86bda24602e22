"""The folder of a save: where its parts are written, who may write there, what a dead save left, and the commit.

A new checkpoint grows in a hidden folder beside its name and gets the name with one rename. Where the name is taken
already, the parts are written into that folder under names of their own, and replacing `.metadata` is the commit: until
then it names the files of the checkpoint before, and these are removed afterwards. Only the coordinator changes names.
"""

import contextlib
import errno
import os
import socket
from dataclasses import dataclass

from everstep.dcp import names, record
from everstep.dcp.record import Record
from everstep.errors import EverstepError, Fenced, RunInUse, StoreFailed
from everstep.foreign import metadata
from everstep.store.disk import LocalDisk, created, publish, write_new

TRIES = 3

_leases: dict[str, "Lease"] = {}
"""Leases of this process, by folder. A save that fails on another rank is not told so: the next one takes it over."""


def growing(path: str) -> str:
    """Where the parts of a save into `path` are written. Every rank comes to the same answer by itself: it is asked
    between the two meetings of a save, and nothing changes there in the meantime."""
    try:
        taken = bool(os.listdir(path))
    except FileNotFoundError:
        taken = False
    except NotADirectoryError as file:
        raise StoreFailed(f"{path}: is a file; a checkpoint is a folder. Choose another path.") from file
    where = path if taken else names.staging(path)
    if os.path.islink(where):  # never `path`, whose links were followed: what it leads to is somebody else's
        raise StoreFailed(f"{where}: is a link; a save grows in a folder of its own. Nothing was changed. Remove it.")
    return where


@dataclass(frozen=True, slots=True, eq=False)
class Lease:
    """An open, locked file. Not its number alone: that is given to the next file as soon as this one is closed."""

    handle: int


@dataclass(frozen=True, slots=True)
class Begun:
    """A save under way, as its coordinator holds it. `replaces`: torch's own files that it makes useless."""

    path: str
    where: str
    lease: Lease
    replaces: tuple[str, ...]


def begin(path: str) -> Begun:
    """Make ready for all ranks: take the lease, remove what dead saves left. RunInUse when a save is under way."""
    parent = created(os.path.dirname(path))
    try:
        for _ in range(TRIES):
            where = growing(path)
            _recycle(parent, os.path.basename(where), new=not os.path.isdir(where))
            with contextlib.suppress(FileNotFoundError):  # swept by another save just before we took its lease
                return _taken(path, where)
    finally:
        parent.release()
    raise RunInUse(f"{path}: other saves take this folder away while one begins. Save one after the other.")


def commit(begun: Begun, said: Record, index: bytes) -> None:
    """The checkpoint exists when this returns, and did not before. `index` is the content of its `.metadata`."""
    if _leases.get(begun.where) is not begun.lease:
        raise Fenced(f"{begun.path}: a later save of this process took the folder over; this one is not committed.")
    disk = LocalDisk(begun.where)
    try:
        record.lengths(disk, said, begun.where)
        write_new(disk, names.record(index), [record.pack(said)])
        disk.sync_dir("")
        if begun.where == begun.path:
            publish(disk, names.METADATA, index)
        else:
            write_new(disk, names.METADATA, [index])
            disk.sync_dir("")
            _name(begun, said, names.record(index))
        _tidy(begun.path)
    finally:
        disk.release()
        release(begun)


def release(begun: Begun) -> None:
    """Give the lease back, if it is still ours."""
    if _leases.get(begun.where) is begun.lease:
        os.close(_leases.pop(begun.where).handle)


def _taken(path: str, where: str) -> Begun:
    if (over := _leases.pop(where, None)) is not None:
        os.close(over.handle)
    disk = LocalDisk(where)
    try:
        handle = disk.lock(names.LEASE, f"{socket.gethostname()} {os.getpid()}\n".encode())
        if handle is None:
            raise RunInUse(f"{path}: another process is saving into this folder. Wait for it, or end it.")
        if not os.path.exists(os.path.join(where, names.LEASE)):
            os.close(handle)
            raise FileNotFoundError(where)
        lease = _leases[where] = Lease(handle)
        kept, useless = _committed(disk, where) if where == path else (set(), set())
        _sweep(disk, kept, useless, whole=where != path)
    finally:
        disk.release()
    return Begun(path, where, lease, tuple(sorted(name for name in kept if names.TORCHS.fullmatch(name))))


def _recycle(parent: LocalDisk, wanted: str, *, new: bool) -> None:
    """Remove what dead saves of other names left; if the folder `wanted` is new, make it out of their folders.

    Renaming one empty folder onto another leaves one of them: that is how the dead ones go. A folder without a lease
    may be a save that begins this moment, and stays.
    """
    for name in parent.names(""):
        if not names.STAGING.fullmatch(name) or name == wanted or os.path.islink(os.path.join(parent.root, name)):
            continue
        with contextlib.suppress(NotADirectoryError, FileNotFoundError):
            disk = LocalDisk(os.path.join(parent.root, name))
            try:
                if not disk.exists(names.LEASE) or disk.locked(names.LEASE):
                    continue
                _sweep(disk, set(), set(), whole=True)
                if new and disk.names("") == [names.LEASE]:  # otherwise somebody put a file of his own into it
                    disk.remove(names.LEASE)
                    parent.rename(name, wanted)
            finally:
                disk.release()
    if new:
        with contextlib.suppress(FileExistsError):
            parent.make_dir(wanted)


def _committed(disk: LocalDisk, path: str) -> tuple[set[str], set[str]]:
    """The names that what is committed here needs, and those of torch's own files that it has no use for."""
    if not disk.exists(names.METADATA):
        return set(), set()
    try:
        name, said = record.load(disk, path)
        if said is not None:
            return {name, *(sealed.name for sealed in said.files)}, set(said.replaces)
        return set(record.used(metadata.read(path))), set()
    except EverstepError:  # it cannot be read, so nothing is known to be useless: all of it stays
        return set(disk.names("")), set()


def _sweep(disk: LocalDisk, kept: set[str], useless: set[str], *, whole: bool = False) -> None:
    """Remove what saves left and is not to be kept; of a folder that never got its name, all that a save puts there."""
    for name in disk.names(""):
        if name not in kept and (names.ours(name) or name in useless or (whole and name == names.METADATA)):
            with contextlib.suppress(FileNotFoundError):
                disk.remove(name)


def _name(begun: Begun, said: Record, record_name: str) -> None:
    """Give the folder its name; if somebody put files there in the meantime, bring the parts to them instead."""
    parent = LocalDisk(os.path.dirname(begun.path))
    hidden, name = os.path.basename(begun.where), os.path.basename(begun.path)
    try:
        try:
            parent.rename(hidden, name)
        except OSError as taken:
            if taken.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
            for part in (*(sealed.name for sealed in said.files), record_name):
                parent.rename(f"{hidden}/{part}", f"{name}/{part}")
            parent.sync_dir(name)
            parent.rename(f"{hidden}/{names.METADATA}", f"{name}/{names.METADATA}")
            parent.sync_dir(name)
        parent.sync_dir("")
    finally:
        parent.release()


def _tidy(path: str) -> None:
    """Remove what the commit made useless. A crash here loses nothing: the next save sweeps."""
    disk = LocalDisk(path)
    try:
        _sweep(disk, *_committed(disk, path))
    finally:
        disk.release()
