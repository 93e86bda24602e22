"""The code, the page that describes it, and literal bytes say the same."""

import itertools
import struct

import msgspec
import pytest
import xxhash

from everstep.codec import body
from everstep.dcp import names
from everstep.dcp.record import Record
from everstep.log import frame
from everstep.native import reference
from everstep.store import document, witness
from everstep.store.manifest import Identity
from everstep.types import combine, printed
from tests.format import vectors

PAGE = vectors.on_the_page()


@pytest.mark.parametrize("name", vectors.made())
def test_the_code_writes_the_bytes_on_the_page(name: str) -> None:
    assert vectors.made()[name] == PAGE[name]


def test_the_page_has_no_vector_that_is_not_checked() -> None:
    assert PAGE.keys() == vectors.made().keys()
    assert vectors.texts_on_the_page().keys() == vectors.texts().keys()


@pytest.mark.parametrize("name", vectors.texts())
def test_the_code_writes_the_text_on_the_page(name: str) -> None:
    assert vectors.texts()[name] == vectors.texts_on_the_page()[name]


def test_run_json_reads_back() -> None:
    found = document.parse(vectors.run_json_on_the_page(), "run", Identity, name="run.json")
    assert found.run == "000102030405060708090a0b0c0d0e0f"


def test_a_document_s_checksum_is_xxh3_128_of_its_inner_bytes() -> None:
    text = vectors.run_json_on_the_page()
    inner = text[text.index(b'"document":') + 11 : -1]
    assert f'"checksum":"{xxhash.xxh3_128_hexdigest(inner)}"'.encode() in text


def test_a_segment_head_reads_back_as_its_table_says() -> None:
    head = frame.parse_head(PAGE["segment-head"])
    assert (head.rank, head.run, head.epoch, head.sequence, head.after_step, head.before) == (
        0,
        vectors.RUN,
        1,
        0,
        0,
        0,
    )
    assert PAGE["segment-head"][:8] == b"EVERSEG1"
    assert len(PAGE["segment-head"]) == 128
    assert head.chain == xxhash.xxh3_64_intdigest(PAGE["segment-head"][:120])


def test_records_read_back_as_their_table_says_and_are_chained() -> None:
    chain = frame.parse_head(PAGE["segment-head"]).chain
    update = frame.parse(PAGE["record-update"], chain=chain, room=128)
    assert (update.kind, update.body_bytes, update.step, update.epoch, update.acknowledged) == (1, 8, 1, 1, 0)
    assert update.nbytes == len(PAGE["record-update"]) == 128
    frame.check_body(update, PAGE["record-update"][64:])
    rebase = frame.parse(PAGE["record-rebase"], chain=update.chain, room=192)
    assert (rebase.kind, rebase.body_bytes, rebase.step, rebase.acknowledged) == (2, 65, 2, 1)
    frame.check_body(rebase, PAGE["record-rebase"][64:])
    with pytest.raises(frame.BadFrame, match="chain"):
        frame.parse(PAGE["record-rebase"], chain=chain, room=192)


def test_a_record_is_these_fields_in_this_order() -> None:
    fields = struct.unpack("<4sIQQQqQQQ", PAGE["record-update"][:64])
    assert fields[:6] == (b"ESR1", 1, 8, 1, 1, 0)
    assert fields[6:8] == (xxhash.xxh3_64_intdigest(b"everstep"), 0)


def test_a_body_reads_back() -> None:
    found = body.parse(memoryview(PAGE["body"]), name="vector")
    assert found.head == vectors.HEAD
    assert bytes(found.blobs["gradient/0/w"][1]) == vectors.BLOB


def test_a_layout_puts_each_element_where_the_page_s_formula_does() -> None:
    """And nowhere twice: what is left over is padding."""
    told = msgspec.json.decode(vectors.texts_on_the_page()["layout"])
    whole = {"embed": [(4, 0), (4, 1)], "qkv": [(1, 0), (1, 1), (3, 0), (3, 1), (5, 0), (5, 1)], "flat": [(2, 2)]}
    for name, indices in whole.items():
        _, _, _, pieces, _ = told[name]
        found = {
            index: base + sum((i - lo) * step for i, lo, step in zip(index, low, strides, strict=True))
            for (low, high), base, strides in pieces
            for index in itertools.product(*map(range, low, high))
        }
        assert found == {index: at for at, index in enumerate(indices)}


def test_a_record_of_dcp_reads_back_and_has_the_name_that_the_page_gives() -> None:
    found = document.parse(vectors.texts_on_the_page()["dcp-record"], "dcp", Record, name="record")
    assert found.files[0].checksums == (xxhash.xxh3_128_hexdigest(b"everstep"),)
    assert names.record(b"everstep") in vectors.PAGE()


def test_a_witness_reads_back_for_its_own_epoch_only() -> None:
    assert witness.parse(PAGE["witness"], 1) == witness.Noted(7, ((0, 4), (6, 7)))
    assert witness.parse(PAGE["witness"], 2) is None
    assert witness.parse(PAGE["witness-none"], 2) == witness.Noted(-1, ())


def test_a_safetensors_header_is_aligned() -> None:
    header = PAGE["safetensors-header"]
    assert len(header) % 64 == 0
    assert int.from_bytes(header[:8], "little") == len(header) - 8


@pytest.mark.parametrize("name", vectors.TENSORS)
def test_the_digest_of_a_tensor_is_as_on_the_page(name: str) -> None:
    assert printed(reference.digest(vectors.TENSORS[name])) == vectors.digests_on_the_page()[name]


def test_the_digest_of_a_set_is_as_on_the_page_in_any_order() -> None:
    page = vectors.digests_on_the_page()
    titles = ["none", "`model/w` = F32 [1.0, 2.0, 3.0]", "the same and `model/b` = F32 [0.0]"]
    for title, pairs in zip(titles, vectors.SETS.values(), strict=True):
        assert combine(pairs()) == combine(reversed(pairs())) == page[title]


def test_the_page_s_formula_is_the_digest() -> None:
    low = high = 0
    for index, word in enumerate(struct.unpack("<3I", vectors.BLOB)):
        z = (word ^ (index * 0x9E3779B97F4A7C15)) * 0xBF58476D1CE4E5B9 % (1 << 64)
        z ^= z >> 32
        z = z * 0x94D049BB133111EB % (1 << 64)
        low, high = low + z, high + (z & 0xFFFFFFFF) * (z >> 32)
    expected = vectors.digests_on_the_page()["F32 [1.0, 2.0, 3.0]"]
    assert printed((low % (1 << 64), high % (1 << 64))) == expected


def test_the_digest_has_the_weakness_that_the_page_admits() -> None:
    import torch

    key = 0x9E3779B97F4A7C15
    mask = ((1 * key) ^ (2 * key)) % (1 << 64)
    words = [7, 8, 9]
    other = [7, 9 ^ mask, 8 ^ mask]
    signed = [[w - (1 << 64) if w >> 63 else w for w in side] for side in (words, other)]
    assert reference.digest(torch.tensor(signed[0])) == reference.digest(torch.tensor(signed[1]))
