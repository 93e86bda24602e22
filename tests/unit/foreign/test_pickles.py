"""Pickles are data: plain values come out as they went in, names stay names, and nothing is ever run."""

import argparse
import collections
import os
import pickle
import tracemalloc
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import numpy
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from everstep.errors import Damaged, EverstepError
from everstep.foreign.inert import Record, Unknown
from everstep.foreign.pickles import loads

scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary()
keys = st.text() | st.integers(-(1 << 63), 1 << 63)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner) | st.tuples(inner, inner) | st.dictionaries(keys, inner),
    max_leaves=20,
)


@given(values, st.integers(0, pickle.HIGHEST_PROTOCOL))
@settings(max_examples=100, deadline=None)
def test_plain_values_come_out_as_they_went_in(value: object, protocol: int) -> None:
    assert loads(pickle.dumps(value, protocol), "file") == value


def test_values_that_are_shared_stay_shared() -> None:
    inner = [1]
    found = loads(pickle.dumps([inner, inner]), "file")
    assert isinstance(found, list)
    assert found[0] is found[1]


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_ordered_dicts_and_namespaces_are_read(protocol: int) -> None:
    found = loads(pickle.dumps([collections.OrderedDict(a=1), argparse.Namespace(b=2)], protocol), "file")
    assert isinstance(found, list)
    assert found[0] == {"a": 1}
    assert protocol < 2 or (isinstance(found[1], Record) and found[1].fields == {"b": 2})


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_numpy_scalars_are_numbers(protocol: int) -> None:
    value = [numpy.float64(0.1), numpy.float32(0.5), numpy.int64(-3), numpy.bool_(True)]
    assert loads(pickle.dumps(value, protocol), "file") == [0.1, 0.5, -3, True]


class Runs:
    """An object that runs a command when it is unpickled."""

    def __init__(self, call: Callable[..., object], *args: object) -> None:
        self._call, self._args = call, args

    def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...]]:
        return self._call, self._args


CALLS: list[tuple[Callable[..., object], str]] = [
    (os.system, "touch {}"), (eval, "open({!r}, 'w')"), (exec, "open({!r}, 'w')"), (os.mkdir, "{}"), (open, "{}"),
]  # fmt: skip


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.parametrize("call, text", CALLS)
def test_a_call_that_a_pickle_asks_for_is_never_made(
    call: Callable[..., object], text: str, protocol: int, tmp_path: Path
) -> None:
    mark = tmp_path / "mark"
    found = loads(pickle.dumps({"x": Runs(call, text.format(str(mark)))}, protocol), "file")
    assert isinstance(found, dict)
    assert isinstance(found["x"], Unknown)
    assert found["x"].of.name == call.__name__
    assert not mark.exists()


def test_an_unknown_object_is_kept_with_its_name_and_state() -> None:
    found = loads(b"cmodule\nName\n)\x81}X\x01\x00\x00\x00aK\x01sb.", "file")
    assert isinstance(found, Unknown)
    assert (found.of.dotted, found.args, found.state) == ("module.Name", (), {"a": 1})


def test_what_a_call_returned_cannot_be_called() -> None:
    with pytest.raises(Damaged, match="called that is no name"):
        loads(b"cos\nsystem\n(tR(tR.", "file")


def laughs(depth: int) -> bytes:
    """A list of two of a list of two of a list ..: 2**depth leaves in a few bytes."""
    return b"]" + b"q\x000(h\x00h\x00l" * depth + b"."


BAD = {
    "empty": b"",
    "no end": b"]",
    "nothing at the end": b".",
    "two values at the end": b"]].",
    "an open mark": b"(].",
    "no such operation": b"\xff.",
    "an empty stack": b"a.",
    "a value from nowhere": b"h\x00.",
    "a huge text": b"X\xff\xff\xff\x7fabc.",
    "a huge number": b"\x8b\xff\xff\xff\x7f.",
    "a number of many digits": b"I" + b"9" * 100_000 + b"\n.",
    "a key that takes forever to hash": b")q\x00" + b"0h\x00h\x00\x86q\x00" * 60 + b"0}h\x00Ns.",
    "a list as key": b"}]Ns.",
    "appended to a number": b"K\x01Na.",
    "an extension": b"\x82\x01.",
    "a buffer of another file": b"\x97.",
    "a storage that is none": b"X\x01\x00\x00\x00aQ.",
    "a negative place": b"Np-1\n.",
    "a tensor without a storage": b"ctorch._utils\n_rebuild_tensor_v2\n(NK\x00))tR.",
    "too deep": b"(" * 10_000 + b".",
    "bytes that are copied without end": b"X\xa0\x86\x01\x00"
    + b"a" * 100_000
    + b"q\x00"
    + b"c_codecs\nencode\n(h\x00X\x06\x00\x00\x00latin1tR" * 10_000
    + b".",
    "lists that are copied without end": b"("
    + b"N" * 100_000
    + b"lq\x00"
    + b"cbuiltins\nlist\n(h\x00tR" * 10_000
    + b".",
    "a name without end": b"c" + b"a" * 2000 + b"\nb\n.",
    "numbers as keys that take forever to hash": b"\x8b\xa0\x86\x01\x00"
    + b"\x01" * 100_000
    + b"q\x00"
    + b"}h\x00Ns" * 99
    + b".",
    "an instance built twice": b"cargparse\nNamespace\n)\x81}X\x01\x00\x00\x00aNsb}b.",
    "too many operations": b"N0" * 150_000 + b"N.",
}


@pytest.mark.timeout(20)
@pytest.mark.parametrize("content", BAD.values(), ids=BAD.keys())
def test_what_cannot_be_a_pickle_is_damaged_and_names_the_file(content: bytes) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(Damaged, match="a/file"):
            loads(content, "a/file")
        assert tracemalloc.get_traced_memory()[1] < len(content) * 8 + (64 << 20)
    finally:
        tracemalloc.stop()


def test_damage_is_named_by_its_byte() -> None:
    with pytest.raises(Damaged, match="byte 1002"):
        loads(b"]0a.", "file", offset=1000)


@pytest.mark.timeout(20)
def test_a_value_without_end_is_read_without_being_walked() -> None:
    assert isinstance(loads(laughs(60), "file"), list)


@given(st.binary(max_size=200))
@settings(max_examples=200, deadline=None)
def test_any_bytes_are_read_or_refused(content: bytes) -> None:
    with suppress(EverstepError):
        loads(content, "file")
