"""A bar on the terminal while long work goes on; nothing at all when standard error is not one."""

import contextlib
import sys
from collections.abc import Callable, Iterator


@contextlib.contextmanager
def progress(what: str) -> Iterator[Callable[[int, int], None]]:
    """Call what is yielded with the work done and the work in all."""
    if not sys.stderr.isatty():
        yield lambda _done, _total: None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


@contextlib.contextmanager
def waiting(what: str) -> Iterator[None]:
    """For work that cannot say how far it is."""
    with progress(what):
        yield
