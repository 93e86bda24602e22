"""What a run warned of: in the program's log the first time that one of a kind is said; the last few in `health`."""

import logging

LOGGER = logging.getLogger("everstep")
KEPT_MAX = 20


class Warnings:
    def __init__(self) -> None:
        self._kinds: set[str] = set()
        self._texts: dict[str, None] = {}

    def say(self, text: str, kind: str = "") -> None:
        if (kind or text) not in self._kinds:
            self._kinds.add(kind or text)
            LOGGER.warning("%s", text)
        self._texts[text] = None
        while len(self._texts) > KEPT_MAX:
            del self._texts[next(iter(self._texts))]

    def last(self) -> tuple[str, ...]:
        return (*self._texts,)
