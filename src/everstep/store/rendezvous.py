"""Where processes of one user on one host find a run's keeper: a private directory with a socket and a lock per run.

The directory lies in memory where there is /dev/shm, so a restart of the host sweeps it. What the lock says counts,
not that the socket's file is there: a killed keeper leaves its file behind, the kernel takes back its lock.
"""

import contextlib
import fcntl
import os
import stat

from everstep.errors import StoreFailed


def directory() -> str:
    """This user's directory, made if need be; refused when someone else could have put something into it."""
    parent = "/dev/shm" if os.access("/dev/shm", os.W_OK | os.X_OK) else "/tmp"  # noqa: S108 checked below
    path = f"{parent}/everstep-{os.geteuid()}"
    with contextlib.suppress(FileExistsError):
        os.mkdir(path, 0o700)
    found = os.lstat(path)
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o077:
        raise StoreFailed(f"{path}: must be a directory of this user alone (mode 700). Remove it, or mend its mode.")
    return path


def name_of(run: str, path: str) -> str:
    """The run in this directory. A copy of the directory is the same run, but has a keeper of its own."""
    found = os.stat(path)
    return f"{run}-{found.st_dev:x}-{found.st_ino:x}"


def is_at(name: str, path: str) -> bool:
    """Whether the run of this name still lies there; someone may have removed it."""
    try:
        return name == name_of(name.partition("-")[0], path)
    except OSError:
        return False


def address(name: str) -> str:
    """Where the keeper of this run listens."""
    return f"{directory()}/{name}.sock"


def own(name: str) -> int | None:
    """Become the one keeper of this run on this host, for as long as the descriptor is open; None if there is one."""
    path = f"{directory()}/{name}.lock"
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.stat(path).st_ino != os.fstat(descriptor).st_ino:  # the one before us has just taken its name away
            raise BlockingIOError
    except (BlockingIOError, FileNotFoundError):
        os.close(descriptor)
        return None
    with contextlib.suppress(FileNotFoundError):
        os.unlink(address(name))
    return descriptor


def log_of(name: str) -> str:
    """Where the keeper's own messages go. Not to the trainer's error output: whoever reads that would wait for us."""
    return f"{directory()}/{name}.log"


def last_words(name: str) -> str:
    """The last line a keeper wrote; empty when it wrote none."""
    with contextlib.suppress(OSError), open(log_of(name), errors="replace") as lines:
        return "".join(lines.readlines()[-1:]).strip()[-500:]
    return ""


def leave(name: str, descriptor: int) -> None:
    """Take the names away again; the last to go."""
    for path in (address(name), log_of(name), f"{directory()}/{name}.lock"):
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
    os.close(descriptor)


def runs() -> list[str]:
    """The runs that have, or had, a keeper on this host."""
    return sorted(name.removesuffix(".sock") for name in os.listdir(directory()) if name.endswith(".sock"))
