"""Any value that can be recorded comes back the same, of the same type; what cannot is named by its key."""

import math
from collections import Counter, OrderedDict
from typing import Any

import msgspec
import numpy
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from everstep.capture.context import encode
from everstep.capture.tensors import view
from everstep.codec import tree
from everstep.errors import Unsupported

text = st.text(st.characters(codec="utf-8"), max_size=8)
scalars = (
    st.none() | st.booleans() | st.integers() | st.floats() | text | st.binary(max_size=8)
    | st.integers(-(1 << 2000), 1 << 2000)
    | st.integers(-128, 127).map(numpy.int8) | st.floats(width=32).map(numpy.float32)
)  # fmt: skip
keys = text | st.integers() | st.booleans() | st.none() | st.binary(max_size=3) | st.tuples(st.integers(), text)
values = st.recursive(
    scalars,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4), st.lists(inner, max_size=4).map(tuple), st.dictionaries(keys, inner, max_size=4),
        st.dictionaries(st.sampled_from(["$", "v", "a/b", "a", "~"]), inner, max_size=4), st.sets(keys, max_size=4),
        st.dictionaries(text, inner, max_size=3).map(OrderedDict), st.lists(text, max_size=4).map(Counter),
    ),
    max_leaves=15,
)  # fmt: skip


def there_and_back(value: Any) -> Any:
    """Through the very bytes of a file."""
    encoded = encode("x", value)
    names = [tensor.name for tensor, _ in encoded.blobs]
    assert len(names) == len(set(names)), "two tensors share a name"
    tensors = {t.name: view(memoryview(bytearray(data)), t) for t, data in encoded.blobs}
    return tree.decode(msgspec.json.decode(msgspec.json.encode(encoded.tree)), tensors.__getitem__)


def same(one: Any, two: Any) -> bool:
    if type(one) is not type(two):
        return False
    if isinstance(one, (list, tuple)):
        return len(one) == len(two) and all(map(same, one, two))
    if isinstance(one, dict):
        return same(list(one), list(two)) and same(list(one.values()), list(two.values()))
    if isinstance(one, (float, numpy.floating)):
        return (math.isnan(one) and math.isnan(two)) or (one == two and math.copysign(1, one) == math.copysign(1, two))
    if isinstance(one, (torch.Tensor, numpy.ndarray)):
        return one.dtype == two.dtype and one.shape == two.shape and bool((one == two).all())
    return bool(one == two)


@settings(deadline=None, max_examples=300, print_blob=True)
@given(values)
def test_a_value_comes_back_the_same_and_of_the_same_type(value: Any) -> None:
    assert same(there_and_back(value), value)


ARRAYS = [
    torch.arange(6).reshape(2, 3).t(), torch.tensor(1.5), torch.empty(0, 2), torch.tensor([1 + 2j]).conj(),
    torch.tensor([True]), torch.tensor([1.0], dtype=torch.bfloat16), numpy.arange(6).reshape(2, 3)[:, ::-1],
    numpy.float64(0.1), numpy.bool_(True), numpy.zeros((), "<c16"), numpy.zeros((0, 3), "<u4"), numpy.uint64(1 << 63),
]  # fmt: skip


@pytest.mark.parametrize("value", ARRAYS, ids=lambda value: f"{type(value).__name__} {value.dtype}")
def test_arrays_and_numbers_of_both_libraries_come_back(value: Any) -> None:
    assert same(there_and_back({"a": [value]})["a"][0], value)


ONE, TWO = torch.ones(1), torch.zeros(1)
NEAR: list[dict[Any, Any]] = [
    {"a/b": ONE, "a": {"b": TWO}}, {1: ONE, "1": TWO}, {"a": [ONE], "a/0": TWO}, {"~1": ONE, "/": TWO},
    {"$": {"0:$": ONE}, "0:$": TWO}, {True: ONE, "True": TWO}, {"a~1b": ONE, "a": {"b": TWO}},
    {"": {"": ONE}, "/": TWO},
]  # fmt: skip


@pytest.mark.parametrize("value", NEAR, ids=lambda value: str(list(value)))
def test_tensors_in_two_places_never_share_a_name(value: dict[Any, Any]) -> None:
    assert same(there_and_back(value), value)


REFUSED: list[tuple[Any, str]] = [
    ({"a": {"b": object()}}, "x/a/b"), ({"a": [0, {3: print}]}, "x/a/1/0:3"), ((1, (2, frozenset())), "x/1/1"),
    ({"a": "\ud800"}, "x/a"), ({"\udfff": 1}, "x"), ({"n": 10**5000}, "x/n"), ({"n": numpy.longdouble(1)}, "x/n"),
    ({"n": numpy.zeros(2, ">f4")}, "x/n"), ({"n": numpy.array(["a"])}, "x/n"), ({"n": numpy.datetime64("2020")}, "x/n"),
    ({"n": numpy.zeros(1, "g")}, "x/n"), ({"n": bytearray(1)}, "x/n"), ({"n": 1j}, "x/n"),
    ({"t": torch.zeros(2).to_sparse()}, "x/t"), ({"t": torch.empty(1, device="meta")}, "x/t"),
]  # fmt: skip


@pytest.mark.parametrize("value, where", REFUSED)
def test_what_cannot_be_recorded_is_named_by_its_key(value: Any, where: str) -> None:
    with pytest.raises(Unsupported) as raised:
        encode("x", value)
    assert str(raised.value).startswith(f"{where}:")


def test_a_value_that_holds_itself_is_refused() -> None:
    value: list[Any] = []
    value.append(value)
    with pytest.raises(Unsupported, match="nested"):
        encode("x", value)


def test_what_is_nested_as_deeply_as_allowed_comes_back() -> None:
    value: Any = 1
    for at in range(tree.DEPTH_MAX):
        value = ([value], (value,), {at: value})[at % 3]
    assert same(there_and_back(value), value)
