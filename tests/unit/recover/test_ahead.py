"""Bodies that are read ahead are those that were written, in order; a bad one is named, however it was read."""

from pathlib import Path

import pytest

from everstep.errors import Damaged
from everstep.log import frame
from everstep.log.reader import Located
from everstep.recover import ahead, pages
from everstep.store.disk import LocalDisk

BODIES = [bytes([at + 1]) * (100 + 1000 * at) for at in range(5)]


def written(home: Path) -> tuple[LocalDisk, list[Located]]:
    """Two segments without heads: three records in one, two in the other."""
    located, chain = [], 0
    for name, steps in (("one", (1, 2, 3)), ("two", (4, 5))):
        data = b""
        for step in steps:
            pieces, link = frame.pack(frame.UPDATE, step, 1, 0, [BODIES[step - 1]], chain=chain)
            packed = b"".join(map(bytes, pieces))
            located.append(Located(frame.parse(packed[:64], chain=chain, room=len(packed)), name, len(data) + 64))
            chain, data = link, data + packed
        (home / name).write_bytes(data)
    return LocalDisk(str(home)), located


@pytest.fixture(params=[(8 << 20, 2 << 20), (64, 512)], ids=["whole", "many pieces"])
def sizes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ahead, "STRETCH_BYTES", request.param[0])
    monkeypatch.setattr(pages, "HUGE_BYTES", request.param[1])


@pytest.mark.usefixtures("sizes")
def test_bodies_come_in_order_and_whole(tmp_path: Path) -> None:
    disk, located = written(tmp_path)
    found = [(record.step, bytes(data)) for record, data in ahead.bodies(disk, located)]
    assert found == list(enumerate(BODIES, 1))


@pytest.mark.usefixtures("sizes")
def test_what_comes_before_a_bad_body_is_given_and_the_bad_one_named(tmp_path: Path) -> None:
    disk, located = written(tmp_path)
    data = bytearray((tmp_path / "two").read_bytes())
    data[64 + 7] ^= 1
    (tmp_path / "two").write_bytes(data)
    found = []
    with pytest.raises(Damaged, match="step 4 fails its body checksum") as refused:
        found += [record.step for record, _ in ahead.bodies(disk, located)]
    assert refused.value.intact == 3


def test_nothing_is_read_beyond_the_next(tmp_path: Path) -> None:
    disk, located = written(tmp_path)
    (tmp_path / "two").unlink()
    bodies = ahead.bodies(disk, located)
    assert [next(bodies)[0].step, next(bodies)[0].step] == [1, 2]
    bodies.close()  # type: ignore[attr-defined]


def test_none_are_none(tmp_path: Path) -> None:
    assert list(ahead.bodies(LocalDisk(str(tmp_path)), [])) == []
