"""What several tests of exactness share."""

import pytest

from everstep import api
from tests.late import LateMover


@pytest.fixture
def late(monkeypatch: pytest.MonkeyPatch) -> list[LateMover]:
    """Runs copy as a device does, later; the movers they got, in the order in which they resumed."""
    made: list[LateMover] = []

    def mover(_parameters: object) -> LateMover:
        made.append(LateMover())
        return made[-1]

    monkeypatch.setattr(api, "mover", mover)
    return made
