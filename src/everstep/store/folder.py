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
    parent, name = os.path.split(os.path.abspath(path))
    above = created(parent)
    temporary = f".{name[:200]}.{os.urandom(6).hex()}.tmp"
    try:
        above.make_dir(temporary)
        try:
            disk = LocalDisk(os.path.join(parent, temporary))
            try:
                yield disk
            finally:
                disk.release()
            _sync(os.path.join(parent, temporary))
            refuse(path)
            above.rename(temporary, name)  # replaces an empty folder, and nothing else
            above.sync_dir("")
        except BaseException:
            shutil.rmtree(os.path.join(parent, temporary), ignore_errors=True)
            raise
    except OSError as failed:
        raise StoreFailed(f"{path}: could not be written ({failed.strerror}). Nothing was left there.") from failed
    finally:
        above.release()


@contextlib.contextmanager
def growing_file(path: str) -> Iterator[tuple[LocalDisk, str]]:
    """The same for one file: the hidden folder that it grows in, and its name there."""
    refuse_file(path)
    parent, name = os.path.split(os.path.abspath(path))
    above = created(parent)
    temporary = f".{name[:200]}.{os.urandom(6).hex()}.tmp"
    try:
        above.make_dir(temporary)
        try:
            disk = LocalDisk(os.path.join(parent, temporary))
            try:
                yield disk, name
                disk.sync_file(name)
            finally:
                disk.release()
            above.link(f"{temporary}/{name}", name)  # unlike rename it refuses a name that was taken meanwhile
            above.sync_dir("")
        finally:
            shutil.rmtree(os.path.join(parent, temporary), ignore_errors=True)
    except FileExistsError:
        refuse_file(path)
        raise
    except OSError as failed:
        raise StoreFailed(f"{path}: could not be written ({failed.strerror}). Nothing was left there.") from failed
    finally:
        above.release()


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
