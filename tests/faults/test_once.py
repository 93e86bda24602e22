"""A state that is on its way to the disk is not sent again, and a step has one record in the log, whoever sends it."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import everstep
from everstep.codec import body
from everstep.keeper.feed import Feed
from everstep.log import frame
from everstep.log.inventory import survey
from everstep.ring import ring as words
from everstep.ring.pen import Pen
from everstep.store.disk import LocalDisk, existing
from tests.faults.conftest import Small
from tests.faults.disks import StalledDisk
from tests.faults.test_keeper import until

Around = Callable[[Callable[[LocalDisk], Any]], list[Any]]


@pytest.mark.parametrize("ends", [everstep.Run.wait, everstep.Run.close], ids=["wait", "close"])
def test_a_base_whose_record_is_late_is_not_taken_again(
    ends: Callable[[everstep.Run], object], tmp_path: Path, around: Around
) -> None:
    go = threading.Event()
    go.set()
    around(lambda disk: StalledDisk(disk, go))
    program = Small()
    run = program.open(tmp_path / "run", settings=everstep.Settings(source="state"))
    run.resume()
    assert run.wait(timeout=60) == 0
    go.clear()
    program.step()
    run.commit()
    assert until(lambda: run.health.bases == 2), "the base is written, its record is not"
    with ThreadPoolExecutor(1) as beside:
        ended = beside.submit(ends, run)
        with pytest.raises(TimeoutError):
            ended.result(timeout=0.3)
        go.set()
        ended.result(timeout=60)
    run.close()
    disk = existing(str(tmp_path / "run"))
    found = survey(disk, "run")
    disk.release()
    assert (found.damages, found.spans()) == ([], [(0, 1)])
    assert [entry.step for entry in found.bases] == [0, 1]


class Taken:
    """What a keeper is given, in the place of a keeper."""

    bytes_per_s, acknowledged = 0.0, 0

    def __init__(self) -> None:
        self.steps: list[tuple[int, int]] = []

    def put(self, item: Any, _snapshot: object) -> None:
        self.steps.append((item.record.kind, item.record.step))
        item.release()


NOTHING = body.Head((), {}, {}, "", None, ())


def test_what_the_log_has_is_not_written_again() -> None:
    """As when a keeper died after it had written a record, and the state that it was to write comes once more."""
    ring, keeper = words.create(1 << 16, present=True), Taken()
    pen = Pen(ring)
    for kind, step in ((words.REBASE, 7), (words.REBASE, 7), (words.UPDATE, 8), (words.REBASE, 8), (words.UPDATE, 9)):
        extent = pen.put([body.head_piece(NOTHING)])
        assert extent is not None
        sequence = pen.write(kind, step, [extent])
        ring.vouch(sequence, words.E_DEVICE)
        pen.vouch(sequence)
    Feed(ring, {}, keeper, 0, 6).pump()  # type: ignore[arg-type]
    assert keeper.steps == [(frame.REBASE, 7), (frame.UPDATE, 8), (frame.UPDATE, 9)]
    assert ring.word(words.W_RELEASED) == ring.word(words.W_HEAD)
