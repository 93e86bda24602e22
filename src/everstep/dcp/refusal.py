"""Why there is nothing to load at a path: what is missing there, and what is still good beside it."""

import os

from everstep.dcp import names
from everstep.errors import Damaged
from everstep.foreign.tiling import some


def refusal(path: str) -> Damaged:
    """Why there is nothing to load at `path`: what is missing, and what is still good beside it."""
    parent = os.path.dirname(path)
    began = [where for where in (path, names.staging(path)) if _parts(where)]
    what = "there is no such checkpoint"
    if os.path.isdir(path):
        what = f"{names.METADATA} is missing, which the last act of a save puts there"
    if began:
        what += (
            f"; a save was begun and not finished ({_parts(began[0])} of its data files are in {began[0]}). They are "
            "not a checkpoint, and the next save sweeps them"
        )
    whole = sorted(
        (entry for entry in _entries(parent) if os.path.exists(os.path.join(entry.path, names.METADATA))),
        key=lambda entry: entry.stat().st_mtime, reverse=True,
    )  # fmt: skip
    good = f"Finished checkpoints beside it, newest first: {some(e.name for e in whole)}." if whole else ""
    return Damaged(f"{path}: {what}. {good or 'No finished checkpoint is beside it: check the path.'}")


def _parts(where: str) -> int:
    try:
        return sum(name.endswith(".distcp") for name in os.listdir(where))
    except OSError:
        return 0


def _entries(parent: str) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(parent) as entries:
            return [entry for entry in entries if entry.is_dir() and not names.STAGING.fullmatch(entry.name)]
    except OSError:
        return []
