"""The file operations we allow, and the only code that changes files.

Nothing here is durable until `sync` (a file's bytes) and `sync_dir` (its name) have returned. A failed `sync` is never
repeated: Linux marks the failed pages clean, so the second call reports a success that did not happen.

`Disk` is wider than our other seams on purpose: it is the list of system calls that a crash can interrupt, and the
crash tests replace it as a whole.
"""

import contextlib
import errno
import fcntl
import os
import stat
import struct
from collections.abc import Iterable, Sequence
from typing import Protocol

from everstep.errors import NotARun, StoreFailed
from everstep.store.readahead import ADVICE_BYTES_MAX, ADVICE_BYTES_MIN, FAR_BYTES, ahead_bytes
from everstep.types import Bytes

IOV_MAX = 1024
WRITE_BYTES = 32 << 20
FLOCK = struct.Struct("hhqqi4x")
CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


class Source(Protocol):
    """A file open for reading. Its size is taken once; a reader never looks beyond it."""

    size: int

    def read(self, offset: int, length: int) -> bytes: ...
    def read_into(self, offset: int, target: memoryview) -> None: ...
    def expect(self, offset: int, length: int) -> None: ...
    def close(self) -> None: ...


class Files(Protocol):
    """A run's files, for one who only reads them."""

    def source(self, path: str) -> Source: ...


class Disk(Protocol):
    """A run's directory. Paths are `name` or `directory/name`, made by `store.names`, never taken from data."""

    def make_dir(self, path: str) -> None: ...
    def names(self, directory: str) -> list[str]: ...
    def exists(self, path: str) -> bool: ...
    def source(self, path: str) -> Source: ...
    def create(self, path: str) -> int: ...
    def write(self, handle: int, pieces: Sequence[Bytes]) -> None: ...
    def mark(self, handle: int, data: bytes) -> None: ...
    def sync(self, handle: int) -> None: ...
    def sync_file(self, path: str) -> None: ...
    def close(self, handle: int) -> None: ...
    def rename(self, path: str, target: str) -> None: ...
    def link(self, path: str, target: str) -> None: ...
    def remove(self, path: str) -> None: ...
    def sync_dir(self, directory: str) -> None: ...
    def lock(self, path: str, text: bytes) -> int | None: ...


class OpenFile:
    """`Source` over a descriptor."""

    def __init__(self, descriptor: int, path: str) -> None:
        self._descriptor, self._path, told = descriptor, path, os.fstat(descriptor)
        self.size = told.st_size
        self._ahead_bytes = ahead_bytes(told.st_dev)

    def read(self, offset: int, length: int) -> bytes:
        """`length` bytes at `offset`; EOFError when the file became shorter than it was when opened."""
        data = os.pread(self._descriptor, length, offset)  # whole as a rule: one allocation of the file's size, not two
        if len(data) == length:
            return data
        target = bytearray(length)
        self.read_into(offset, memoryview(target))
        return bytes(target)

    def read_into(self, offset: int, target: memoryview) -> None:
        while target:
            count = os.preadv(self._descriptor, [target[: 1 << 30]], offset)
            if count == 0:
                raise EOFError(f"{self._path}: the file ends at byte {offset}, more was expected")
            target, offset = target[count:], offset + count

    def expect(self, offset: int, length: int) -> None:
        """These bytes will be read soon: bring them into the kernel's cache, or let the disk begin with that. Nothing
        can go wrong."""
        with contextlib.suppress(OSError):
            if self._ahead_bytes >= FAR_BYTES:
                self._pass(offset, length)
                return
            step = min(ADVICE_BYTES_MAX, max(ADVICE_BYTES_MIN, self._ahead_bytes))
            for at in range(offset, offset + length, step):
                count = min(step, offset + length - at)
                os.posix_fadvise(self._descriptor, at, count, os.POSIX_FADV_WILLNEED)

    def _pass(self, offset: int, length: int) -> None:
        """Read them, to nowhere: nothing is copied."""
        os.posix_fadvise(self._descriptor, 0, 0, os.POSIX_FADV_SEQUENTIAL)  # reads ahead twice as far
        nowhere = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
        try:
            while length and (count := os.sendfile(nowhere, self._descriptor, offset, length)):
                offset, length = offset + count, length - count
        finally:
            os.close(nowhere)

    def locked(self) -> bool:
        """Whether another open file holds a lock on this one."""
        asked = FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
        return bool(FLOCK.unpack(fcntl.fcntl(self._descriptor, fcntl.F_OFD_GETLK, asked))[0] != fcntl.F_UNLCK)

    def close(self) -> None:
        os.close(self._descriptor)


class LocalDisk:
    """A directory of a local file system, held open by descriptor so that a link put in its place changes nothing."""

    def __init__(self, root: str) -> None:
        self.root = root
        self._directories = {"": os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)}

    def make_dir(self, path: str) -> None:
        parent, name = self._at(path)
        os.mkdir(name, 0o700, dir_fd=parent)

    def names(self, directory: str) -> list[str]:
        # A description of its own: threads that list one descriptor move each other's place in it, and miss names.
        descriptor = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=self._directory(directory))
        try:
            return sorted(os.listdir(descriptor))
        finally:
            os.close(descriptor)

    def exists(self, path: str) -> bool:
        parent, name = self._at(path)
        try:
            os.stat(name, dir_fd=parent, follow_symlinks=False)
        except FileNotFoundError:
            return False
        return True

    def source(self, path: str) -> OpenFile:
        parent, name = self._at(path)
        # O_NONBLOCK: a FIFO put in the file's place must not hang us before the type is known.
        descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=parent)
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            raise OSError(errno.EINVAL, "not a regular file", path)
        return OpenFile(descriptor, path)

    def create(self, path: str) -> int:
        parent, name = self._at(path)
        return os.open(name, CREATE, 0o600, dir_fd=parent)

    def write(self, handle: int, pieces: Sequence[Bytes]) -> None:
        """Append all pieces. One call of the system may take fewer bytes (2 GiB limit, signal); this does not."""
        rest = [view for piece in pieces if (view := memoryview(piece).cast("B"))]
        while rest:
            count = os.writev(handle, rest[:IOV_MAX])
            while rest and count >= len(rest[0]):
                count -= len(rest.pop(0))
            if rest and count:
                rest[0] = rest[0][count:]

    def mark(self, handle: int, data: bytes) -> None:
        """Overwrite the first bytes of a file, unsynced: a note that may be lost, never one that lies."""
        if os.pwrite(handle, data, 0) != len(data):
            raise OSError(errno.ENOSPC, "short write of a witness")

    def sync(self, handle: int) -> None:
        os.fdatasync(handle)

    def sync_file(self, path: str) -> None:
        """Make a file's bytes durable, whoever wrote them, and have them read from the disk from now on.

        A killed writer's bytes may be in the page cache only; after a failed sync the cache shows them still, as clean.
        """
        parent, name = self._at(path)
        descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=parent)
        try:
            os.fdatasync(descriptor)
        finally:
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(descriptor)

    def close(self, handle: int) -> None:
        os.close(handle)

    def rename(self, path: str, target: str) -> None:
        (parent, name), (other, new) = self._at(path), self._at(target)
        os.rename(name, new, src_dir_fd=parent, dst_dir_fd=other)

    def link(self, path: str, target: str) -> None:
        """Give a file a second name; FileExistsError when it is taken. Decides a race even where locks fail."""
        (parent, name), (other, new) = self._at(path), self._at(target)
        os.link(name, new, src_dir_fd=parent, dst_dir_fd=other)

    def remove(self, path: str) -> None:
        parent, name = self._at(path)
        os.unlink(name, dir_fd=parent)

    def sync_dir(self, directory: str) -> None:
        os.fsync(self._directory(directory))

    def lock(self, path: str, text: bytes) -> int | None:
        """Take the lease and leave `text` in it, or return None when another open file holds it.

        An open-file-description lock: a POSIX lock would vanish when any descriptor of the file is closed.
        """
        parent, name = self._at(path)
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        descriptor = os.open(name, flags, 0o600, dir_fd=parent)
        held = os.fstat(descriptor)
        if not stat.S_ISREG(held.st_mode) or held.st_nlink > 1:  # it is written over: it must be ours alone
            os.close(descriptor)
            raise OSError(errno.EINVAL, "not a regular file with one name", path)
        try:
            fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0))
            os.pwrite(descriptor, text, 0)  # over the text before: a full disk would not give its room back
            os.ftruncate(descriptor, len(text))
        except OSError as refused:
            os.close(descriptor)
            if isinstance(refused, BlockingIOError):
                return None
            raise
        return descriptor

    def locked(self, path: str) -> bool:
        """Whether some open file holds the lease. Asks only: nothing is locked, created or written."""
        try:
            source = self.source(path)
        except FileNotFoundError:
            return False
        try:
            return source.locked()
        finally:
            source.close()

    def release(self) -> None:
        """Close the directories; the disk cannot be used afterwards."""
        while self._directories:
            os.close(self._directories.popitem()[1])

    def _at(self, path: str) -> tuple[int, str]:
        directory, _, name = path.rpartition("/")
        return self._directory(directory), name

    def _directory(self, name: str) -> int:
        if name not in self._directories:
            flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
            self._directories[name] = os.open(name, flags, dir_fd=self._directories[""])
        return self._directories[name]


def publish(disk: Disk, path: str, data: bytes) -> None:
    """Replace `path`. After a power cut it holds the old bytes or these, never a mix."""
    temporary = write_temporary(disk, path, data)
    disk.rename(temporary, path)
    disk.sync_dir(path.rpartition("/")[0])  # without this the rename itself can be lost


def claim(disk: Disk, path: str, data: bytes) -> bool:
    """Create `path` with these bytes unless it exists. Of two that try, exactly one gets True."""
    temporary = write_temporary(disk, path, data)
    try:
        disk.link(temporary, path)
    except FileExistsError:
        return False
    finally:
        with contextlib.suppress(FileNotFoundError):  # swept by another who takes the run over
            disk.remove(temporary)
    disk.sync_dir(path.rpartition("/")[0])
    return True


def write_temporary(disk: Disk, path: str, data: bytes) -> str:
    """A durable file beside `path`, under a name no other writer uses; the lease's next owner sweeps leftovers."""
    directory, _, name = path.rpartition("/")
    temporary = f"{directory}/.{name}.{os.urandom(6).hex()}.tmp" if directory else f".{name}.{os.urandom(6).hex()}.tmp"
    write_new(disk, temporary, [data])
    return temporary


def write_new(disk: Disk, path: str, pieces: Iterable[Bytes]) -> int:
    """Write a new file and make its bytes durable, its name not yet. Nothing is left of it when that fails: on a full
    disk half a file must not take the log's place. Returns its length."""
    handle, length = disk.create(path), 0
    try:
        for piece in pieces:
            view = memoryview(piece).cast("B")
            length += len(view)
            for at in range(0, len(view), WRITE_BYTES):
                disk.write(handle, [view[at : at + WRITE_BYTES]])
        disk.sync(handle)
    except BaseException:
        disk.close(handle)
        disk.remove(path)
        raise
    disk.close(handle)
    return length


def existing(path: str) -> LocalDisk:
    """The directory at `path`, for reading; NotARun when there is none."""
    try:
        return LocalDisk(path)
    except FileNotFoundError as none:
        raise NotARun(f"{path}: there is no such directory. Check the path; 'everstep ls' takes a run's.") from none
    except NotADirectoryError as none:
        raise NotARun(f"{path}: this is a file; a run is a directory. Check the path.") from none
    except PermissionError as none:
        raise StoreFailed(f"{path}: may not be read by this user. A run belongs to the user who trains.") from none


def created(path: str) -> LocalDisk:
    """The directory at `path`, made with its parents if it is new, private to the user, and durable by name."""
    missing = []
    head = os.path.abspath(path)
    while not os.path.lexists(head):
        missing.append(head)
        head = os.path.dirname(head)
    try:
        with contextlib.suppress(PermissionError):  # then it is not ours, and whoever made it saw to it
            _sync_name(head)  # made, perhaps, by one of us who was killed before syncing it
        for directory in reversed(missing):
            os.mkdir(directory, 0o700)
            _sync_name(directory)
        disk = LocalDisk(path)
    except OSError as failed:
        raise StoreFailed(
            f"{path}: cannot be used for a run ({failed.strerror}). Choose another directory."
        ) from failed
    if not os.access(path, os.W_OK | os.X_OK) or os.statvfs(path).f_flag & os.ST_RDONLY:
        disk.release()
        raise StoreFailed(f"{path}: is read-only for this user. A run needs a directory it can write to.")
    return disk


def _sync_name(directory: str) -> None:
    descriptor = os.open(os.path.dirname(directory), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
