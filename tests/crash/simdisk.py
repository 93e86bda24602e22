"""A disk in memory that remembers what a power cut may still take: the `Disk` of `store.disk`, with its effects listed.

A write is durable once its file was synced, a name once its directory was. Everything else is an effect that waits;
`states` enumerates what a crash can make of them. The page cache shows all effects, as it does to a killed process's
successor.
"""

import errno
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from everstep.types import Bytes
from tests.crash.frozen import SimSource

DIRECTORY = -1
MARKS_KEPT = 2


class Cut(BaseException):
    """The process ends here. Not an Exception: nothing may catch it and go on."""


@dataclass(slots=True)
class Write:
    """Bytes of one file that no sync has covered."""

    inode: int
    offset: int
    data: bytes
    mark: bool = False


@dataclass(slots=True)
class Naming:
    """Names of one directory that change together; None removes a name."""

    directory: str
    names: dict[str, int | None]


@dataclass(slots=True)
class _Kernel:
    """What outlives a process: the cache, the platter, what waits between them. `cache` and `durable` by inode."""

    cache: dict[int, bytearray] = field(default_factory=dict)
    durable: dict[int, bytes] = field(default_factory=dict)
    seen: dict[str, int] = field(default_factory=dict)
    named: dict[str, int] = field(default_factory=dict)
    effects: list[Write | Naming] = field(default_factory=list)
    inodes: int = 0


class SimDisk:
    """`Disk` for one process. `watch` is called after every effect; `refuse` may raise before any call."""

    def __init__(self, kernel: _Kernel | None = None) -> None:
        self.kernel = kernel or _Kernel()
        self.watch: Callable[[], None] = lambda: None
        self.refuse: Callable[[str, str], None] = lambda _call, _path: None
        self.drops: Callable[[], bool] = lambda: False
        self.cut = False
        self._handles: dict[int, int] = {}
        self._locks: set[int] = set()
        self._others: list[SimDisk] = []

    @classmethod
    def of(cls, files: dict[str, bytes]) -> "SimDisk":
        """A disk that holds these files, durably; a path that ends in `/` is a directory."""
        disk = cls()
        for number, (path, content) in enumerate(files.items(), start=1):
            inode = DIRECTORY if path.endswith("/") else number
            disk.kernel.seen[path.rstrip("/")] = disk.kernel.named[path.rstrip("/")] = inode
            disk.kernel.cache[inode], disk.kernel.durable[inode] = bytearray(content), bytes(content)
        disk.kernel.inodes = len(files) + 1
        return disk

    def neighbour(self) -> "SimDisk":
        """The same file system as another process sees it."""
        other = SimDisk(self.kernel)
        other._others = [*self._others, self]
        for known in self._others:
            known._others.append(other)
        self._others.append(other)
        return other

    def copy(self) -> "SimDisk":
        """An independent disk in the same state, with nobody using it."""
        old = self.kernel
        cache = {inode: bytearray(content) for inode, content in old.cache.items()}
        return SimDisk(
            _Kernel(cache, dict(old.durable), dict(old.seen), dict(old.named), list(old.effects), old.inodes)
        )

    def cached(self) -> dict[str, bytes]:
        """Every file as the page cache shows it."""
        return {
            f"{path}/" if inode == DIRECTORY else path: bytes(self.kernel.cache.get(inode, b""))
            for path, inode in self.kernel.seen.items()
        }

    def settled(self) -> dict[str, bytes]:
        """Every file as it is when the power goes now and nothing that waits gets through."""
        return {
            f"{path}/" if inode == DIRECTORY else path: self.kernel.durable.get(inode, b"")
            for path, inode in self.kernel.named.items()
        }

    # The protocol, in its order.

    def make_dir(self, path: str) -> None:
        self._enter("make_dir", path)
        if path in self.kernel.seen:
            raise FileExistsError(errno.EEXIST, "exists", path)
        self._name("", {path: DIRECTORY})

    def names(self, directory: str) -> list[str]:
        self._enter("names", directory)
        start = f"{directory}/" if directory else ""
        if directory and self.kernel.seen.get(directory) != DIRECTORY:
            raise FileNotFoundError(errno.ENOENT, "no such directory", directory)
        found = (path[len(start) :] for path in self.kernel.seen if path.startswith(start))
        return sorted(name for name in found if "/" not in name)

    def exists(self, path: str) -> bool:
        self._enter("exists", path)
        return path in self.kernel.seen

    def source(self, path: str) -> SimSource:
        self._enter("source", path)
        return SimSource(bytes(self.kernel.cache[self._inode(path)]))

    def create(self, path: str) -> int:
        self._enter("create", path)
        if path in self.kernel.seen:
            raise FileExistsError(errno.EEXIST, "exists", path)
        return self._open(self._create(path))

    def write(self, handle: int, pieces: Sequence[Bytes]) -> None:
        self._enter("write", "")
        inode, data = self._handles[handle], b"".join(bytes(piece) for piece in pieces)
        cache = self.kernel.cache[inode]
        self.kernel.effects.append(Write(inode, len(cache), data))
        cache += data
        self.watch()

    def mark(self, handle: int, data: bytes) -> None:
        self._enter("mark", "")
        inode = self._handles[handle]
        self.kernel.cache[inode][: len(data)] = data
        waiting = [effect for effect in self.kernel.effects if isinstance(effect, Write) and effect.inode == inode]
        if len(waiting) >= MARKS_KEPT:  # written back meanwhile; older notes than these differ in nothing
            self.kernel.effects.remove(waiting[0])
            self._write_back(waiting[:1])
        self.kernel.effects.append(Write(inode, 0, data, mark=True))
        self.watch()

    def sync(self, handle: int) -> None:
        try:
            self._enter("sync", "")
        except OSError:  # the pages are clean from now on: the cache shows what the disk never got
            self._forget(self._handles[handle])
            raise
        if not self.drops():
            self._sync_inode(self._handles[handle])

    def sync_file(self, path: str) -> None:
        self._enter("sync_file", path)
        inode = self._inode(path)
        if not self.drops():
            self._sync_inode(inode)
            self.kernel.cache[inode] = bytearray(self.kernel.durable[inode])

    def close(self, handle: int) -> None:
        self._enter("close", "")
        self._locks.discard(self._handles.pop(handle))

    def rename(self, path: str, target: str) -> None:
        self._enter("rename", path)
        self._name(target.rpartition("/")[0], {path: None, target: self._inode(path)})

    def link(self, path: str, target: str) -> None:
        self._enter("link", path)
        if target in self.kernel.seen:
            raise FileExistsError(errno.EEXIST, "exists", target)
        self._name(target.rpartition("/")[0], {target: self._inode(path)})

    def remove(self, path: str) -> None:
        self._enter("remove", path)
        self._inode(path)
        self._name(path.rpartition("/")[0], {path: None})

    def sync_dir(self, directory: str) -> None:
        self._enter("sync_dir", directory)
        if self.drops():
            return
        rest: list[Write | Naming] = []
        for effect in self.kernel.effects:
            if isinstance(effect, Naming) and effect.directory == directory:
                rename(self.kernel.named, effect)
            else:
                rest.append(effect)
        self.kernel.effects = rest

    def lock(self, path: str, text: bytes) -> int | None:
        self._enter("lock", path)
        inode = self.kernel.seen[path] if path in self.kernel.seen else self._create(path)
        if any(inode in other._locks for other in (self, *self._others) if not other.cut):
            return None
        self.kernel.cache[inode][:] = text
        self._locks.add(inode)
        return self._open(inode)

    # What the calls share.

    def _enter(self, call: str, path: str) -> None:
        if self.cut:
            raise Cut
        self.refuse(call, path)

    def _inode(self, path: str) -> int:
        if path not in self.kernel.seen:
            raise FileNotFoundError(errno.ENOENT, "no such file", path)
        return self.kernel.seen[path]

    def _create(self, path: str) -> int:
        self.kernel.inodes += 1
        inode = self.kernel.inodes
        self.kernel.cache[inode], self.kernel.durable[inode] = bytearray(), b""
        self._name(path.rpartition("/")[0], {path: inode})
        return inode

    def _open(self, inode: int) -> int:
        handle = len(self._handles) + 1
        while handle in self._handles:
            handle += 1
        self._handles[handle] = inode
        return handle

    def _name(self, directory: str, changes: dict[str, int | None]) -> None:
        effect = Naming(directory, changes)
        self.kernel.effects.append(effect)
        rename(self.kernel.seen, effect)
        self.watch()

    def _sync_inode(self, inode: int) -> None:
        mine = [effect for effect in self.kernel.effects if isinstance(effect, Write) and effect.inode == inode]
        self._write_back(mine)
        self.kernel.effects = [effect for effect in self.kernel.effects if not any(effect is done for done in mine)]

    def _forget(self, inode: int) -> None:
        self.kernel.effects = [e for e in self.kernel.effects if not isinstance(e, Write) or e.inode != inode]

    def _write_back(self, writes: list[Write]) -> None:
        for write in writes:
            content = bytearray(self.kernel.durable[write.inode])
            lay(content, write.offset, write.data)
            self.kernel.durable[write.inode] = bytes(content)


def rename(names: dict[str, int], effect: Naming) -> None:
    for path, inode in effect.names.items():
        if inode is None:
            names.pop(path, None)
        else:
            names[path] = inode


def lay(content: bytearray, offset: int, data: bytes) -> None:
    """Put bytes at an offset; a hole before them reads as zeros."""
    if len(content) < offset:
        content += bytes(offset - len(content))
    content[offset : offset + len(data)] = data
