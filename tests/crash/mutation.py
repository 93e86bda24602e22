"""How a safety is taken out: a table of bugs, and attributes swapped for as long as one is in place."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

Bug = Callable[[], contextlib.AbstractContextManager[None]]

BUGS: dict[str, tuple[str, Bug]] = {}


def bug(scenario: str) -> Callable[[Callable[[], Iterator[None]]], Bug]:
    """Enter a mutation into the table."""

    def enter(function: Callable[[], Iterator[None]]) -> Bug:
        BUGS[function.__name__.replace("_", " ")] = (scenario, made := contextlib.contextmanager(function))
        return made

    return enter


@contextlib.contextmanager
def swapped(owner: Any, name: str, value: Any) -> Iterator[None]:
    real = owner.__dict__[name]
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, real)
