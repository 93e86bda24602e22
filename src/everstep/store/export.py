"""Writes one file outside a run, whole or not at all: what `everstep restore --to` leaves for other tools."""

import contextlib
import os
from collections.abc import Iterable, Mapping, Sequence

from everstep.errors import StoreFailed
from everstep.store import base
from everstep.store.disk import LocalDisk, write_new
from everstep.types import DTYPE_BYTES, Bytes, Tensor


def publish(path: str, pieces: Iterable[Bytes], *, force: bool) -> int:
    """Write `path` and return its length. After a power cut it is there whole, or as it was before."""
    directory, name = os.path.split(os.path.abspath(path))
    refuse(path, force=force)
    try:
        disk = LocalDisk(directory)
    except OSError as none:
        raise StoreFailed(f"{directory}: cannot be written to ({none.strerror}). Choose another path.") from none
    temporary = f".{name[:200]}.{os.urandom(6).hex()}.tmp"
    try:
        length = write_new(disk, temporary, pieces)
        try:
            if force:
                disk.rename(temporary, name)
            else:
                disk.link(temporary, name)  # unlike rename it refuses a name that was taken meanwhile
                disk.remove(temporary)
        except BaseException:
            with contextlib.suppress(OSError):
                disk.remove(temporary)
            raise
        disk.sync_dir("")
    except FileExistsError:
        refuse(path, force=False)
        raise
    except OSError as failed:
        raise StoreFailed(f"{path}: could not be written ({failed.strerror}). Nothing was left there.") from failed
    finally:
        disk.release()
    return length


def refuse(path: str, *, force: bool) -> None:
    """Raise StoreFailed when `path` may not be written; asked before any work is done, and again when it is written."""
    if os.path.isdir(path):
        raise StoreFailed(f"{path}: is a directory. Name a file.")
    if not force and os.path.lexists(path):
        raise StoreFailed(
            f"{path}: exists already. Nothing was changed. Choose another name, or replace it with --force."
        )


def safetensors(tensors: Sequence[tuple[Tensor, Bytes]], step: int, notes: Mapping[str, str]) -> list[Bytes]:
    """The pieces of a safetensors file, laid out as a base is."""
    ordered = sorted(tensors, key=lambda item: (-DTYPE_BYTES[item[0].dtype], item[0].name))
    stored, end = [], 0
    for tensor, _ in ordered:
        stored.append(base.Stored(tensor, end, ""))
        end += tensor.nbytes
    return [base.safetensors_header(stored, step, notes), *(held for _, held in ordered)]
