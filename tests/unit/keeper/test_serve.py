"""A keeper that has decided to end lets nobody in: who was welcomed must not find it gone."""

from pathlib import Path

import pytest

import everstep
from everstep.keeper.channel import Gone
from everstep.keeper.messages import Hello
from everstep.keeper.serve import Keeping
from everstep.store.disk import created


def test_nobody_sits_down_once_the_keeper_has_decided_to_end(tmp_path: Path) -> None:
    keeping = Keeping(str(tmp_path), "0" * 32, created(str(tmp_path)))
    keeping.end()
    assert keeping._finished()
    with pytest.raises(Gone, match="just ending"):
        keeping._seat(Hello(everstep.__version__, 0, 1, "t", False, "now"))
