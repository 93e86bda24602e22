"""Writes one folder, or one file, whole or not at all: a run that is imported, a checkpoint that is exported.

It grows beside its place under a hidden name, is made durable file by file, and is renamed. Whoever dies before that
leaves a hidden folder that nothing takes for a checkpoint; whatever is raised takes it away again.
"""

import contextlib
import os
import shutil
from collections.abc import Iterator

from everstep.errors import StoreFailed
from everstep.store.disk import LocalDisk, created


@contextlib.contextmanager
def growing(path: str) -> Iterator[LocalDisk]:
    """The folder while it grows; it has its name, and is durable, when the block ends without an error."""
    refuse(path)
    with _hidden(path) as (above, hidden, name):
        disk = LocalDisk(os.path.join(above.root, hidden))
        try:
            yield disk
        finally:
            disk.release()
        _sync(disk.root)
        refuse(path)
        above.rename(hidden, name)  # replaces an empty folder, and nothing else
        above.sync_dir("")


@contextlib.contextmanager
def growing_file(path: str) -> Iterator[tuple[LocalDisk, str]]:
    """The same for one file: the hidden folder that it grows in, and its name there."""
    refuse_file(path)
    with _hidden(path) as (above, hidden, name):
        disk = LocalDisk(os.path.join(above.root, hidden))
        try:
            yield disk, name
            disk.sync_file(name)
        finally:
            disk.release()
        try:
            above.link(f"{hidden}/{name}", name)  # unlike rename it refuses a name that was taken meanwhile
        except FileExistsError:
            refuse_file(path)
            raise
        above.sync_dir("")


def refuse_file(path: str) -> None:
    """Raise StoreFailed when the name is taken."""
    if os.path.lexists(path):
        raise StoreFailed(f"{path}: exists already. Nothing was changed. Choose another name.")


def refuse(path: str) -> None:
    """Raise StoreFailed when something is there already; asked before any work is done, and again at its end."""
    if not os.path.lexists(path):
        return
    if os.path.islink(path) or not os.path.isdir(path):
        raise StoreFailed(f"{path}: is no folder. Nothing was changed. Choose another name.")
    if os.path.lexists(os.path.join(path, "run.json")):
        raise StoreFailed(f"{path}: holds a run already. Nothing was changed. Choose another name.")
    if held := sorted(os.listdir(path)):
        raise StoreFailed(f"{path}: holds other files ({held[0]!r}). Nothing was changed. Choose a new or empty one.")


@contextlib.contextmanager
def _hidden(path: str) -> Iterator[tuple[LocalDisk, str, str]]:
    """The folder above `path`, a new hidden one in it, and the last name of `path`. What is still hidden then goes."""
    parent, name = os.path.split(os.path.abspath(path))
    above = created(parent)
    hidden = f".{name[:200]}.{os.urandom(6).hex()}.tmp"
    try:
        above.make_dir(hidden)
        try:
            yield above, hidden, name
        finally:
            shutil.rmtree(os.path.join(parent, hidden), ignore_errors=True)
    except OSError as failed:
        raise StoreFailed(f"{path}: could not be written ({failed.strerror}). Nothing was left there.") from failed
    finally:
        above.release()


def _sync(root: str) -> None:
    """Every file's bytes, then every folder's names, the innermost first."""
    for folder, _, files in os.walk(root, topdown=False):
        for name in files:
            _fsync(os.path.join(folder, name), os.O_RDONLY | os.O_NOFOLLOW)
        _fsync(folder, os.O_RDONLY | os.O_DIRECTORY)


def _fsync(path: str, flags: int) -> None:
    descriptor = os.open(path, flags | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
