"""A record's body is its head and its blobs, and nothing fits that is not in the table."""

import pytest

from everstep.codec import body
from everstep.errors import Damaged
from everstep.types import Tensor, whole


def packed(*blobs: tuple[str, bytes], tail: bytes = b"") -> bytes:
    table = tuple(Tensor(name, "U8", (len(data),), whole((len(data),)), len(data)) for name, data in blobs)
    head = body.Head((), {}, {}, "", None, table)
    return body.head_piece(head) + b"".join(data + body.padding(data) for _, data in blobs) + tail


@pytest.mark.parametrize("sizes", [(), (0,), (1,), (64,), (65, 0, 63, 128)])
def test_blobs_come_back_by_name(sizes: tuple[int, ...]) -> None:
    blobs = [(str(at), bytes([at + 1]) * size) for at, size in enumerate(sizes)]
    found = body.parse(memoryview(packed(*blobs)), name="x").blobs
    assert {name: bytes(memory) for name, (_, memory) in found.items()} == dict(blobs)


def test_blobs_are_views_and_not_copies() -> None:
    data = bytearray(packed(("a", b"abc")))
    memory = body.parse(memoryview(data), name="x").blobs["a"][1]
    data[data.index(b"abc")] = ord("x")
    assert bytes(memory) == b"xbc"


@pytest.mark.parametrize("change", [lambda d: d[:-64], lambda d: d + bytes(64), lambda d: d[:7], lambda d: d[:0]])
def test_a_body_of_another_length_than_its_table_says_is_damage(change: object) -> None:
    assert callable(change)
    with pytest.raises(Damaged):
        body.parse(memoryview(change(packed(("a", b"abc"), ("b", b"d")))), name="x")


def test_two_blobs_of_one_name_are_damage() -> None:
    with pytest.raises(Damaged):
        body.parse(memoryview(packed(("a", b"1"), ("a", b"2"))), name="x")


def test_a_message_names_the_record() -> None:
    with pytest.raises(Damaged, match="record of step 7"):
        body.parse_head(memoryview(b"\xff" * 8), name="record of step 7")
