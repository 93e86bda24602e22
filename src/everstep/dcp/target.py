"""The folder that a save or a load is meant for: given once, or with each call."""

import os

from everstep.errors import Misuse
from everstep.url import local_path


def located(path: str | os.PathLike[str]) -> str:
    """The folder that is meant, links followed: a rename would replace the link and not what it leads to."""
    return os.path.realpath(local_path(path))


def required(path: str | None, given_to: str) -> str:
    """The folder, or Misuse that says where to give one."""
    if path is None:
        raise Misuse(f"no path: give one to {given_to} as checkpoint_id.")
    return path
