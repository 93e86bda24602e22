"""JSON made to hurt: refused as damage, in every file and record that holds JSON."""

from collections.abc import Callable
from typing import Any

import pytest

from everstep.codec import body, tree
from everstep.errors import Damaged
from everstep.store import base, document
from everstep.store.manifest import Identity, Manifest
from tests.hostile.forge import envelope

DEEP = 10**6
ATTACKS: dict[str, bytes] = {
    "nothing": b"",
    "a number": b"1",
    "a list": b"[]",
    "not a number": b'{"run":NaN}',
    "infinity": b'{"run":Infinity,"writer":-Infinity}',
    "1e999": b'{"writer":1e999}',
    "a million lists": b"[" * DEEP,
    "a million objects": b'{"a":' * DEEP,
    "a million closed lists": b"[" * DEEP + b"]" * DEEP,
    "a million digits": b'{"writer":' + b"9" * DEEP + b"}",
    "a million decimals": b'{"writer":0.' + b"9" * DEEP + b"}",
    "a lone surrogate": b'{"run":"\\ud800"}',
    "a swapped pair": b'{"run":"\\udc00\\ud800"}',
    "an encoded surrogate": b'{"run":"\xed\xa0\x80"}',
    "a broken letter": b'{"run":"\xff\xfe"}',
    "an overlong slash": b'{"run":"\xc0\xaf"}',
    "a raw control letter": b'{"run":"\x00"}',
    "a comment": b'{"run":"" /* x */}',
    "a trailing comma": b'{"run":"",}',
    "two documents": b"{}{}",
    "ten million letters": b'{"run":"' + b"a" * 10**7 + b'"}',
    "deep under an unknown key": b'{"x":' + b"[" * DEEP + b"]" * DEEP + b"}",
}
KINDS: list[tuple[str, type]] = [("run", Identity), ("manifest", Manifest), ("base", base.Index)]


@pytest.mark.parametrize("attack", ATTACKS)
@pytest.mark.parametrize("kind, shape", KINDS)
def test_a_document_of_hostile_json_is_damage(kind: str, shape: type, attack: str) -> None:
    for data in (ATTACKS[attack], envelope(kind, ATTACKS[attack])):
        with pytest.raises(Damaged) as raised:
            document.parse(data, kind, shape, name="file")
        assert len(str(raised.value)) < 1000


@pytest.mark.parametrize("attack", ATTACKS)
def test_a_record_of_hostile_json_is_damage(attack: str) -> None:
    text = ATTACKS[attack]
    with pytest.raises(Damaged):
        body.parse(memoryview(len(text).to_bytes(8, "little") + text), name="record")


def doubled(data: bytes) -> bytes:
    return data.replace(b'"format":1', b'"format":1,"format":1')


def reordered(data: bytes) -> bytes:
    return data.replace(b'"format":1,', b"").replace(b',"document"', b',"format":1,"document"')


CHANGES: dict[str, Callable[[bytes], bytes]] = {
    "a key twice": doubled,
    "an unknown key": lambda data: data[:-1] + b',"more":1}',
    "a space": lambda data: data.replace(b'":', b'": ', 1),
    "a space at the end": lambda data: data + b" ",
    "a newline at the front": lambda data: b"\n" + data,
    "an escaped letter": lambda data: data.replace(b'"run"', b'"\\u0072un"', 1),
    "upper case": lambda data: data.replace(b"checksum", b"Checksum"),
    "a minus": lambda data: data.replace(b'"format":1', b'"format":-1'),
    "a fraction": lambda data: data.replace(b'"format":1', b'"format":1.0'),
    "a text for a number": lambda data: data.replace(b'"format":1', b'"format":"1"'),
}


@pytest.mark.parametrize("change", CHANGES)
def test_nothing_can_be_added_around_a_document(change: str) -> None:
    packed = document.pack("run", Identity("0" * 32, "now", "1"))
    assert document.parse(packed, "run", Identity, name="run.json").created == "now"
    with pytest.raises(Damaged):
        document.parse(CHANGES[change](packed), "run", Identity, name="run.json")


def test_a_key_given_twice_inside_a_document_is_caught_by_its_checksum() -> None:
    packed = document.pack("run", Identity("0" * 32, "now", "1"))
    with pytest.raises(Damaged):
        document.parse(packed.replace(b'"created":"now"', b'"created":"now","created":"x"'), "run", Identity, name="")


TREES: list[Any] = [
    {"$": "numpy", "v": ["V1", 10**9]}, {"$": "numpy", "v": ["O", [1]]}, {"$": "numpy", "v": ["|i1", 999]},
    {"$": "numpy", "v": ["f8,f8", 1]}, {"$": "numpy", "v": [["a"], 1]}, {"$": "numpy", "v": ["<f8", "1e5"]},
    {"$": "numpy", "v": ["<f8", {"$": "bytes", "v": ""}]}, {"$": "numpy", "v": "<f8"}, {"$": "numpy"},
    {"$": "int", "v": "9" * 10**6}, {"$": "int", "v": "x"}, {"$": "int", "v": 5}, {"$": "float", "v": "1"},
    {"$": "float", "v": []}, {"$": "bytes", "v": "%%"}, {"$": "bytes", "v": 7}, {"$": "set", "v": [[1]]},
    {"$": "dict", "v": [[1]]}, {"$": "dict", "v": [[{}, 1]]}, {"$": "dict", "v": 5}, {"$": "counter", "v": [[[], 1]]},
    {"$": "tensor", "v": "no such"}, {"$": "tensor", "v": 3}, {"$": "ndarray", "v": "no such"}, {"$": "object", "v": 1},
    {"$": [], "v": 1}, {"$": {}, "v": 1}, {"$": None}, {"$": "tuple", "v": 3}, {"$": "tuple"}, {"$": "eval", "v": "1"},
    {"$": "__import__", "v": "os"},
]  # fmt: skip


@pytest.mark.parametrize("value", TREES, ids=lambda value: str(value)[:40])
def test_a_form_that_is_not_ours_is_damage(value: Any) -> None:
    with pytest.raises(Damaged):
        tree.decode(value, {}.__getitem__)


def test_a_value_nested_too_deeply_is_damage() -> None:
    nested: Any = []
    for _ in range(500):
        nested = [nested]
    with pytest.raises(Damaged, match="deep"):
        tree.decode(nested, {}.__getitem__)
