"""A torn tail ends the log; below the acknowledged step it is damage, and is named."""

import pytest

from everstep.errors import Damaged
from everstep.log import frame
from everstep.log.inventory import survey
from everstep.recover import choose
from everstep.store import witness
from tests.hostile.tiny import Files, Memory, W, prove

ACTIVE = W + "e00000002-00000001.seg"
ACK = W + "e00000002.ack"


def newest(files: Files) -> int:
    return survey(Memory(files), "run").newest


def with_witness(files: Files, step: int | None) -> Files:
    """The run as it would be had `step` been noted last; None: the note was lost."""
    rest = {name: data for name, data in files.items() if name != ACK}
    return rest if step is None else rest | {ACK: witness.pack(2, ((step, step),))}


def ends(files: Files) -> list[int]:
    """Where each record of the active segment ends, the head's end first."""
    found = survey(Memory(files), "run").segments[-1][1]
    return [frame.SEGMENT_BYTES, *(record.offset - 64 + record.frame.nbytes for record in found.records)]


def test_every_truncation_below_the_acknowledged_step_is_damage(runs: tuple[Files, Files]) -> None:
    crashed = runs[1]
    data = crashed[ACTIVE]
    for length in range(len(data)):
        cut = Memory(crashed | {ACTIVE: data[:length]})
        found = survey(cut, "run")
        assert found.damages, length
        with pytest.raises(Damaged, match="acknowledged"):
            choose.routes(found)


def test_every_truncation_beyond_the_acknowledged_step_ends_the_log_there(runs: tuple[Files, Files]) -> None:
    files = with_witness(runs[1], 0)
    data, last = files[ACTIVE], survey(Memory(runs[1]), "run").newest
    whole = ends(runs[1])
    for length in range(frame.SEGMENT_BYTES, len(data)):
        found = survey(Memory(files | {ACTIVE: data[:length]}), "run")
        kept = sum(end <= length for end in whole) - 1
        assert not found.damages, length
        assert found.newest == last - (len(whole) - 1) + kept, length


def test_a_damaged_witness_says_nothing_and_loses_nothing(runs: tuple[Files, Files]) -> None:
    assert newest(with_witness(runs[1], None)) == newest(runs[1])


@pytest.mark.parametrize("tail", [bytes(1), bytes(64), bytes(4096), b"\xff" * 777, b"ESR1" * 64], ids=len)
def test_garbage_after_the_last_record_ends_the_log(runs: tuple[Files, Files], tail: bytes) -> None:
    grown = runs[1] | {ACTIVE: runs[1][ACTIVE] + tail}
    assert prove(Memory(grown)) == prove(Memory(runs[1]))


def test_an_old_tail_after_the_last_record_is_not_taken_for_new_records(runs: tuple[Files, Files]) -> None:
    data = runs[1][ACTIVE]
    grown = runs[1] | {ACTIVE: data + data[frame.SEGMENT_BYTES :]}
    assert prove(Memory(grown)) == prove(Memory(runs[1]))


def test_zeros_in_place_of_an_acknowledged_record_are_damage_even_without_a_witness(runs: tuple[Files, Files]) -> None:
    files, data = with_witness(runs[1], None), runs[1][ACTIVE]
    first, second = ends(runs[1])[:2]
    holed = files | {ACTIVE: data[:first] + bytes(second - first) + data[second:]}
    later = frame.later_witness(data[second:], survey(Memory(runs[1]), "run").newest - 1, 2)
    assert bool(survey(Memory(holed), "run").damages) == later


@pytest.mark.parametrize("size", [0, 1, 63, 127])
def test_a_segment_without_a_head_is_damage(runs: tuple[Files, Files], size: int) -> None:
    """A head is durable before a manifest names the segment, so no crash removes it."""
    short = with_witness(runs[1], None) | {ACTIVE: runs[1][ACTIVE][:size]}
    assert survey(Memory(short), "run").damages


def test_heads_that_overlap_cost_no_more_time_than_their_file_is_long() -> None:
    """Each claims the rest of the file as its body: hashed naively this is quadratic, 3 TB for these 20 MB."""
    count = 20 << 14
    heads = [
        frame.FRAME.pack(frame.MAGIC, frame.UPDATE, 64 * (count - at - 1), 9, 1, 8, 0, 0, 0) for at in range(count - 1)
    ]
    assert frame.later_witness(b"".join(heads) + bytes(64), 5, 1)
