"""JSON that would cost far more memory than its text is refused before it is decoded; honest JSON never is."""

import msgspec
import pytest

from everstep.errors import Damaged
from everstep.frugal import refuse_bomb
from everstep.types import Tensor, whole


@pytest.mark.parametrize("piece", [b"[],", b"{},", b"0,", b"[[[]]],"])
def test_a_bomb_is_refused(piece: bytes) -> None:
    with pytest.raises(Damaged, match="more than anything of ours holds"):
        refuse_bomb(b"[" + piece * 3_000_000 + b"0]", name="bomb")


def test_a_table_of_a_million_small_tensors_is_not() -> None:
    table = [Tensor("gradient/0/layers.0.weight", "F32", (3, 3), whole((3, 3)), 36)] * 1_000_000
    refuse_bomb(msgspec.json.encode(table), name="index")
