"""Every parser, fed with anything: a value, or one of the errors it documents."""

import contextlib
from typing import Any

import msgspec
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from everstep.codec import body, tree
from everstep.errors import Damaged, EverstepError, UnknownFormat
from everstep.log import frame
from everstep.store import base, document, witness
from everstep.store.manifest import Identity, Manifest
from tests.hostile.forge import entry_of, envelope, with_base
from tests.hostile.tiny import Files, Memory, prove

fuzz = settings(
    deadline=None, max_examples=200, print_blob=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)  # fmt: skip
numbers = st.integers(-(1 << 70), 1 << 70) | st.floats(allow_nan=False, allow_infinity=False)
keys = st.sampled_from(["$", "v", "a", ""])
JSON = st.recursive(
    st.none() | st.booleans() | numbers | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(keys, inner, max_size=4),
    max_leaves=12,
)
EDIT = st.tuples(st.sampled_from(["set", "cut", "add", "drop"]), st.integers(0, 1 << 20), st.binary(max_size=12))


def edited(data: bytes, edits: list[tuple[str, int, bytes]]) -> bytes:
    for how, where, what in edits:
        at = where % (len(data) + 1)
        if how == "set":
            data = data[:at] + what + data[at + len(what) :]
        elif how == "cut":
            data = data[:at]
        elif how == "add":
            data = data[:at] + what + data[at:]
        else:
            data = data[:at] + data[at + len(what) :]
    return data


@fuzz
@given(st.binary(max_size=200), st.integers(0, (1 << 64) - 1), st.integers(0, 1 << 70))
def test_the_head_of_a_record(data: bytes, chain: int, room: int) -> None:
    for text in (data, frame.MAGIC + data):
        with contextlib.suppress(frame.BadFrame, UnknownFormat):
            frame.parse(text, chain=chain, room=room)
        frame.later_witness(text, 0, 1)


edges = st.sampled_from([0, 1, 2, 63, 64, (1 << 31), (1 << 63) - 1, (1 << 63), (1 << 64) - 1])


@fuzz
@given(edges, edges, edges, edges, st.integers(0, 1 << 40))
def test_the_head_of_a_record_with_a_good_checksum(kind: int, length: int, step: int, epoch: int, room: int) -> None:
    import xxhash

    head = frame.FRAME.pack(frame.MAGIC, kind % (1 << 32), length, step, epoch, -1, 0, 0, 0)[:56]
    data = head + xxhash.xxh3_64_intdigest(head, 5).to_bytes(8, "little")
    with contextlib.suppress(frame.BadFrame, UnknownFormat):
        assert frame.parse(data, chain=5, room=room).nbytes <= room


@fuzz
@given(st.binary(max_size=300))
def test_the_head_of_a_segment(data: bytes) -> None:
    for text in (data, frame.SEGMENT_MAGIC + data):
        with contextlib.suppress(frame.BadFrame, UnknownFormat):
            frame.parse_head(text)


@fuzz
@given(st.binary(max_size=40), st.integers(0, 9), st.integers(-1, 50))
def test_a_witness(data: bytes, epoch: int, step: int) -> None:
    found = witness.parse(data, epoch)
    assert found is None or data.startswith(witness.pack(epoch, found.spans)[: witness.HEAD.size])
    head = witness.pack(epoch, ((0, step),) if step >= 0 else ())[: witness.HEAD.size]
    assert witness.parse(head + data, epoch) == witness.Noted(step, ((step, step),) if step >= 0 else ())


@fuzz
@given(st.binary(max_size=400), JSON)
def test_the_body_of_a_record(data: bytes, value: Any) -> None:
    text = msgspec.json.encode(value)
    head = {"updates": value, "groups": {}, "context": {}, "parameters": "", "state": None, "blobs": value}
    more = msgspec.json.encode(head)
    for piece in (data, *(len(t).to_bytes(8, "little") + t + data for t in (text, more))):
        with contextlib.suppress(Damaged):
            body.parse(memoryview(piece), name="record")


@fuzz
@given(st.lists(st.tuples(st.text(max_size=3), *[st.integers(-2, 9)] * 5), max_size=4))
def test_the_table_of_a_record(rows: list[tuple[Any, ...]]) -> None:
    table = [[name, "F32", [a, b], [[c, 0], [a, d]], e] for name, a, b, c, d, e in rows]
    head = {"updates": [], "groups": {}, "context": {}, "parameters": "", "state": None, "blobs": table}
    text = msgspec.json.encode(head)
    with contextlib.suppress(Damaged):
        found = body.parse(memoryview(len(text).to_bytes(8, "little") + text + bytes(600)), name="record")
        assert all(memory.nbytes == tensor.nbytes for tensor, memory in found.blobs.values())


@fuzz
@given(JSON)
def test_a_tree(value: Any) -> None:
    with contextlib.suppress(Damaged):
        tree.decode(value, {}.__getitem__)


@fuzz
@given(JSON, st.sampled_from(["run", "manifest", "base", "x"]), st.binary(max_size=100))
def test_a_document(value: Any, kind: str, data: bytes) -> None:
    for shape in (Identity, Manifest, base.Index):
        for text in (data, msgspec.json.encode(value), envelope(kind, msgspec.json.encode(value))):
            with contextlib.suppress(Damaged, UnknownFormat):
                document.parse(text, "manifest", shape, name="file")


@fuzz
@given(JSON, st.sampled_from(["tensors", "content", "nbytes", "header_bytes", "header_checksum", "step", "run"]))
def test_the_index_of_a_base(runs: tuple[Files, Files], value: Any, key: str) -> None:
    files = with_base(runs[0], 6, 2, lambda index: index.update({key: value}))
    with contextlib.suppress(Damaged):
        base.load(Memory(files), 0, entry_of(files, 6))


@fuzz
@given(st.integers(0, 13), st.lists(EDIT, min_size=1, max_size=4))
def test_a_whole_run_with_a_file_edited(runs: tuple[Files, Files], which: int, edits: list[Any]) -> None:
    name = sorted(runs[1])[which]
    with contextlib.suppress(EverstepError):
        prove(Memory(runs[1] | {name: edited(runs[1][name], edits)}))
