"""Python values to JSON and back, exactly, with tensors set aside under names.

Plain JSON values stand for themselves. What JSON lacks is an object with one key "$" that names the form and "v":

    {"$":"tuple","v":[..]}  {"$":"dict","v":[[key,value],..]}  {"$":"float","v":"nan"}  {"$":"int","v":"<decimal>"}
    {"$":"bytes","v":"<base64>"}  {"$":"set","v":[..]}  {"$":"ordered","v":[[key,value],..]}  {"$":"counter","v":[..]}
    {"$":"tensor","v":"<name>"}  {"$":"ndarray","v":"<name>"}  {"$":"numpy","v":["<dtype>",value]}

Nothing else can be encoded, and nothing that is decoded can run code.
"""

import base64
import math
import sys
from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping
from typing import Any

from everstep.errors import Damaged, Unsupported

DEPTH_MAX = 64
INT_MAX = 1 << 63
DIGITS_MAX = 4000
"""Of a whole number; Python itself refuses to print or read more than 4300."""
NUMPY = frozenset({"|b1", "|i1", "<i2", "<i4", "<i8", "|u1", "<u2", "<u4", "<u8", "<f2", "<f4", "<f8"})
"""Types of a numpy number. A closed set: numpy.dtype of any text would also make objects and blocks of any size."""

Json = Any
"""What msgspec reads from JSON; checked while it is decoded."""


def encode(value: Any, path: str, put: Callable[[str, Any], bool]) -> Json:
    """`value` as JSON. `put(name, x)` takes x if it is a tensor and returns whether it did. Errors name the key."""
    return _encode(value, path, put, 0)


def decode(tree: Json, get: Callable[[str], Any]) -> Any:
    """The value that was encoded. `get(name)` returns the tensor that was set aside."""
    return _decode(tree, get, 0)


def _encode(value: Any, path: str, put: Callable[[str, Any], bool], depth: int) -> Json:
    if value is None or value is True or value is False:
        return value
    if depth > DEPTH_MAX:
        raise Unsupported(f"{path}: nested deeper than {DEPTH_MAX} levels.")
    kind = type(value)
    if kind in _SCALARS:
        return _SCALARS[kind](value, path)
    if kind in (list, tuple, set):
        items = sorted(value, key=lambda item: (type(item).__name__, repr(item))) if kind is set else value
        inner = [_encode(item, f"{path}/{at}", put, depth + 1) for at, item in enumerate(items)]
        return inner if kind is list else {"$": kind.__name__, "v": inner}
    if kind is dict and all(type(key) is str for key in value) and "$" not in value:
        return {_text(key, path): _encode(item, f"{path}/{_part(key)}", put, depth + 1) for key, item in value.items()}
    if kind in _MAPPINGS:
        form = _MAPPINGS[kind]
        pairs = [
            [
                _encode(key, f"{path}/{at} key", put, depth + 1),
                _encode(item, f"{path}/{at}:{_part(key)}", put, depth + 1),
            ]
            for at, (key, item) in enumerate(value.items())
        ]
        return {"$": form, "v": pairs}
    if put(path, value):
        return {"$": "tensor", "v": path}
    return _numpy(value, path, put)


def _part(key: Any) -> str:
    """A key as part of a tensor's name; two places in a tree never get one name, whatever slashes their keys hold."""
    return str(key).replace("~", "~0").replace("/", "~1")


def _numpy(value: Any, path: str, put: Callable[[str, Any], bool]) -> Json:
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(value, numpy.generic) and value.dtype.str in NUMPY:
        return {"$": "numpy", "v": [value.dtype.str, _encode(value.item(), path, put, 0)]}
    if numpy is not None and isinstance(value, numpy.ndarray) and value.dtype.str in NUMPY | {"<c8", "<c16"}:
        import torch

        if put(path, torch.from_numpy(numpy.ascontiguousarray(value).copy()).reshape(value.shape)):
            return {"$": "ndarray", "v": path}
    raise Unsupported(
        f"{path}: a {type(value).__module__}.{type(value).__qualname__} cannot be recorded. Only tensors and JSON-like "
        "values can (None, bool, int, float, str, bytes, list, tuple, set, dict): convert it, or leave it out of "
        "state_dict()."
    )


def _float(value: float, _path: str) -> Json:
    return value if math.isfinite(value) else {"$": "float", "v": repr(value)}


def _int(value: int, path: str) -> Json:
    if -INT_MAX <= value < INT_MAX:
        return value
    if value.bit_length() > 3 * DIGITS_MAX:  # 3.3 bits make a digit
        raise Unsupported(f"{path}: holds a whole number of more than {3 * DIGITS_MAX} bits.")
    return {"$": "int", "v": str(value)}


def _text(value: str, path: str) -> str:
    try:
        value.encode()
    except UnicodeEncodeError as bad:
        raise Unsupported(f"{path}: holds text that is not valid Unicode ({bad.reason}).") from bad
    return value


def _bytes(value: bytes, _path: str) -> Json:
    return {"$": "bytes", "v": base64.b64encode(value).decode()}


_MAPPINGS: dict[type, str] = {dict: "dict", OrderedDict: "ordered", Counter: "counter"}
_SCALARS: dict[type, Callable[[Any, str], Json]] = {float: _float, int: _int, str: _text, bytes: _bytes}


def _decode(tree: Json, get: Callable[[str], Any], depth: int) -> Any:
    if depth > 2 * DEPTH_MAX:
        raise Damaged("a recorded value is nested too deeply.")
    if isinstance(tree, list):
        return [_decode(item, get, depth + 1) for item in tree]
    if not isinstance(tree, dict):
        return tree
    if "$" not in tree:
        return {key: _decode(item, get, depth + 1) for key, item in tree.items()}
    form, inner = tree.get("$"), tree.get("v")
    try:
        if form in ("tensor", "ndarray") and isinstance(inner, str):
            found = get(inner)
            return found if form == "tensor" else found.numpy()
        return _FORMS[form](inner, lambda item: _decode(item, get, depth + 1))
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as bad:
        raise Damaged(f"a recorded value of form {str(form)[:40]!r} cannot be read.") from bad


def _numpy_scalar(inner: Any, each: Callable[[Any], Any]) -> Any:
    import numpy

    kind, value = inner
    number = each(value)
    if kind not in NUMPY or type(number) not in (bool, int, float):
        raise ValueError(kind)
    return numpy.dtype(kind).type(number)


def _pairs(inner: Any, each: Callable[[Any], Any]) -> list[tuple[Any, Any]]:
    return [(each(key), each(item)) for key, item in inner]


_FORMS: Mapping[Any, Callable[[Any, Callable[[Any], Any]], Any]] = {
    "tuple": lambda inner, each: tuple(each(item) for item in inner),
    "set": lambda inner, each: {each(item) for item in inner},
    "dict": lambda inner, each: dict(_pairs(inner, each)),
    "ordered": lambda inner, each: OrderedDict(_pairs(inner, each)),
    "counter": lambda inner, each: Counter(dict(_pairs(inner, each))),
    "float": lambda inner, _each: {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}[inner],
    "int": lambda inner, _each: int(inner) if len(inner) < DIGITS_MAX else inner[None],
    "bytes": lambda inner, _each: base64.b64decode(inner, validate=True),
    "numpy": _numpy_scalar,
}
