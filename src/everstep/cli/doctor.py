"""`everstep doctor`: is this machine and this disk fit for a run, and is this run well?"""

import os
import platform
import statistics
import time
from importlib import metadata
from typing import Any

from everstep import __version__, native
from everstep.cli import text
from everstep.cli.look import branch, opened
from everstep.errors import Damaged, EverstepError
from everstep.log import lease
from everstep.store import probe
from everstep.url import split_url

SYNCS = 20
SYNC_MS_SLOW = 50.0
NETWORK = ("nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "fuse.sshfs", "fuse.s3fs", "lustre", "ceph", "beegfs", "afs")
FLEETING = {
    "tmpfs": "lives in memory: nothing survives a power cut",
    "ramfs": "lives in memory: nothing survives a power cut",
    "overlay": "is a container's own layer: it goes when the container goes. Use a mounted volume",
}


def doctor(url: str | None, *, as_json: bool) -> None:
    warnings: list[str] = []
    path = None if url is None else split_url(url)[0]
    found = {
        "everstep": __version__,
        "python": platform.python_version(),
        "torch": _torch(warnings),
        "native": {"kernels": native.capability(), "threads": native.threads_max()},
        "memory": _memory(),
        "disk": _disk(path or os.getcwd(), warnings),
        "run": None if url is None else _run(url, warnings),
        "warnings": warnings,
    }
    if as_json:
        text.echo_json(found)
    else:
        _print(found)


def _torch(warnings: list[str]) -> dict[str, Any]:
    try:
        import torch
    except ImportError:
        warnings.append("torch is not installed: runs can be looked at, not trained or restored.")
        return {"version": None, "cpu": None, "threads": None, "gpus": []}
    gpus = (
        [torch.cuda.get_device_name(at) for at in range(torch.cuda.device_count())] if torch.cuda.is_available() else []
    )
    return {
        "version": metadata.version("torch"), "cpu": torch.backends.cpu.get_cpu_capability(),
        "threads": torch.get_num_threads(), "gpus": gpus,
    }  # fmt: skip


def _memory() -> dict[str, int]:
    page = os.sysconf("SC_PAGE_SIZE")
    return {"bytes": page * os.sysconf("SC_PHYS_PAGES"), "free_bytes": page * os.sysconf("SC_AVPHYS_PAGES")}


def _disk(path: str, warnings: list[str]) -> dict[str, Any]:
    """What the directory can hold, what its file system promises, what a durable write costs."""
    try:
        room = os.statvfs(path)
        with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as mounts:
            kind = probe.file_system(path, mounts.read())
    except OSError as bad:
        warnings.append(f"{path}: cannot be looked at ({bad.strerror}).")
        return {"path": path, "type": "unknown", "free_bytes": None, "sync_ms": None, "sync_ms_max": None}
    if kind in NETWORK or kind.startswith("fuse"):
        warnings.append(
            f"{path}: {kind} is a network file system. Locks and fsync may not mean what they say; prefer a local disk."
        )
    if kind in FLEETING:
        warnings.append(f"{path}: {kind} {FLEETING[kind]}.")
    try:
        spent = [1000 * seconds for seconds in probe.sync_seconds(path, SYNCS, time.perf_counter)]
    except OSError as bad:
        warnings.append(f"{path}: cannot be written to ({bad.strerror}).")
        spent = []
    median = statistics.median(spent) if spent else None
    if median is not None and median > SYNC_MS_SLOW:
        warnings.append(f"{path}: a synced write takes {median:.0f} ms; acknowledgement will run that far behind.")
    return {
        "path": path, "type": kind, "free_bytes": room.f_bavail * room.f_frsize,
        "sync_ms": median, "sync_ms_max": max(spent) if spent else None,
    }  # fmt: skip


def _run(url: str, warnings: list[str]) -> dict[str, Any]:
    """Whether the run is well, as far as a look tells; `verify` proves it."""
    try:
        with opened(url) as (disk, path, epoch):
            found = branch(disk, path, epoch)
            holder = lease.holder(disk, found.manifest.writer)
            free = os.statvfs(path).f_bavail * os.statvfs(path).f_frsize
    except Damaged as damaged:
        warnings.append(str(damaged))
        return {"error": str(damaged)}
    except EverstepError as none:
        warnings.append(str(none))
        return {"error": str(none)}
    base = max((entry.nbytes for entry in found.bases), default=0)
    warnings += [str(damage) for damage in found.damages]
    if found.newest < found.acknowledged and not found.damages:
        lost = f"step {found.acknowledged} was acknowledged, the newest that can be restored is {found.newest}"
        warnings.append(f"{path}: {lost}. 'everstep verify' says more.")
    if base > free:
        room = f"the next base needs {text.size(base)}, {text.size(free)} are free"
        warnings.append(f"{path}: {room}. Make room, or 'everstep prune'.")
    return {
        "run": found.manifest.run,
        "owner": holder,
        "acknowledged": found.acknowledged,
        "steps": found.spans(),
        "next_base_bytes": base,
        "room_for_next_base": base <= free,
        "damages": [str(damage) for damage in found.damages],
    }


def _print(found: dict[str, Any]) -> None:
    torch, disk, run = found["torch"], found["disk"], found["run"]
    text.echo(f"everstep {found['everstep']}, Python {found['python']}, torch {torch['version']} ({torch['cpu']})")
    text.echo(f"native kernels: {found['native']['kernels']}, {found['native']['threads']} threads")
    text.echo(f"GPU: {', '.join(torch['gpus']) or 'none'}")
    text.echo(f"memory: {text.size(found['memory']['free_bytes'])} free of {text.size(found['memory']['bytes'])}")
    free = "?" if disk["free_bytes"] is None else text.size(disk["free_bytes"])
    cost = "not measured" if disk["sync_ms"] is None else f"{disk['sync_ms']:.2f} ms (worst {disk['sync_ms_max']:.2f})"
    text.echo(f"disk: {disk['path']}, {disk['type']}, {free} free, a synced write takes {cost}")
    if run is not None and "error" not in run:
        live = f"held by {run['owner']}" if run["owner"] else "not live"
        room = "fits" if run["room_for_next_base"] else "does NOT fit"
        held = f"restorable {text.spans(run['steps'])}; acknowledged {run['acknowledged']}"
        text.echo(f"run {run['run'][:8]}: {live}; {held}; the next base, {text.size(run['next_base_bytes'])}, {room}")
    for warning in found["warnings"]:
        text.echo(f"WARNING: {warning}")
    if not found["warnings"]:
        text.echo("no warnings")
