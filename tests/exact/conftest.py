"""What several tests of exactness share."""

import pytest

import everstep
from tests.late import LateMover


@pytest.fixture
def late(monkeypatch: pytest.MonkeyPatch) -> list[LateMover]:
    """Runs copy as a device does, later; the movers they got, in the order in which they resumed."""
    made: list[LateMover] = []

    def mover(_run: everstep.Run) -> LateMover:
        made.append(LateMover())
        return made[-1]

    monkeypatch.setattr(everstep.Run, "_mover", mover)
    return made
