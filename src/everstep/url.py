"""What a url names: a local directory and, after '#', an older branch of the run in it. Pure, and without torch."""

import os

from everstep.errors import Misuse


def local_path(url: str | os.PathLike[str]) -> str:
    """The directory a url names."""
    text = os.fspath(url)
    if "\0" in text or not text:
        raise Misuse(f"{text!r} is not a path.")
    if "://" in text:
        scheme, _, rest = text.partition("://")
        if scheme != "file":
            raise Misuse(f"{text}: only local directories and file:// are supported.")
        text = rest
    return text


def split_url(url: str | os.PathLike[str]) -> tuple[str, int | None]:
    """A url and the epoch after its last '#', if there is one."""
    text = local_path(url)
    path, mark, epoch = text.rpartition("#")
    return (path, int(epoch)) if mark and epoch.isascii() and epoch.isdigit() else (text, None)
