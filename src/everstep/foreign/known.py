"""The closed table of names that checkpoints use, each with the inert value it stands for.

A function here takes the arguments that the file gives and returns a value of ours, or raises ValueError or TypeError;
none of them is the function that the file names. What is not in the table becomes `Unknown`.
"""

import struct
from collections.abc import Callable
from types import MappingProxyType

from everstep.foreign.inert import ElementType, Global, Record, Shape, StorageRef, TensorRef, Unknown
from everstep.types import DTYPE_BYTES

DIMENSIONS_MAX = 64
COUNT_MAX = 1 << 58
PATH_CHARACTERS_MAX = 4096

DTYPES = MappingProxyType({
    "float64": "F64", "double": "F64", "float32": "F32", "float": "F32", "float16": "F16", "half": "F16",
    "bfloat16": "BF16", "int64": "I64", "long": "I64", "int32": "I32", "int": "I32", "int16": "I16", "short": "I16",
    "int8": "I8", "uint64": "U64", "uint32": "U32", "uint16": "U16", "uint8": "U8", "bool": "BOOL",
    "float8_e4m3fn": "F8_E4M3", "float8_e5m2": "F8_E5M2", "complex64": "C64", "complex128": "C128",
})  # fmt: skip

STORAGES = MappingProxyType({
    "DoubleStorage": "F64", "FloatStorage": "F32", "HalfStorage": "F16", "BFloat16Storage": "BF16",
    "LongStorage": "I64", "IntStorage": "I32", "ShortStorage": "I16", "CharStorage": "I8", "ByteStorage": "U8",
    "BoolStorage": "BOOL", "ComplexFloatStorage": "C64", "ComplexDoubleStorage": "C128",
})  # fmt: skip

NUMBERS = MappingProxyType({
    "f8": "<d", "f4": "<f", "f2": "<e", "i8": "<q", "i4": "<i", "i2": "<h", "i1": "<b", "u8": "<Q", "u4": "<I",
    "u2": "<H", "u1": "<B", "b1": "<?",
})  # fmt: skip
"""numpy's names of number types."""

RECORDS = frozenset({
    *(f"torch.distributed.checkpoint.metadata.{name}" for name in (
        "Metadata", "TensorStorageMetadata", "BytesStorageMetadata", "ChunkStorageMetadata", "TensorProperties",
        "MetadataIndex", "StorageMeta",
    )),
    *(f"torch.distributed.checkpoint.planner.{name}" for name in ("SavePlan", "WriteItem", "TensorWriteData")),
    "torch.distributed.checkpoint.filesystem._StorageInfo", "torch.distributed.checkpoint.filesystem._StoragePrefix",
    "deepspeed.utils.tensor_fragment.fragment_address", "deepspeed.runtime.fp16.loss_scaler.LossScaler",
    "deepspeed.runtime.fp16.loss_scaler.DynamicLossScaler", "argparse.Namespace", "types.SimpleNamespace",
})  # fmt: skip
"""Classes that are their fields."""

ENUMS = frozenset({
    "deepspeed.runtime.zero.config.ZeroStageEnum", "torch.distributed.checkpoint.metadata._MEM_FORMAT_ENCODING",
    "torch.distributed.checkpoint.planner.WriteItemType",
})  # fmt: skip
"""Classes whose instances are their one argument."""

SPELLINGS = MappingProxyType({"__builtin__": "builtins", "copy_reg": "copyreg", "torch.storage": "torch"})
"""What older protocols and releases call the same modules."""


def meaning(of: Global) -> object:
    """The value of a name that is used without being called: an element type, or the name itself."""
    if of.module in ("torch", "torch.storage"):
        if of.name in DTYPES:
            return ElementType(DTYPES[of.name])
        if of.name in STORAGES:
            return ElementType(STORAGES[of.name])
        if of.name == "UntypedStorage":
            return ElementType("U8")
    return of


def made(of: Global, args: tuple[object, ...]) -> object:
    """What calling `of` with `args` stands for. ValueError when the arguments cannot be its own."""
    dotted = f"{SPELLINGS.get(of.module, of.module)}.{of.name}"
    if dotted in RECORDS:
        return Record(of.name)
    if dotted in ENUMS:
        return args[0] if len(args) == 1 else Unknown(of, args)
    call = CALLS.get(dotted)
    return call(*args) if call else Unknown(of, args)


def tensor(storage: object, offset: object, shape: object, strides: object, *_: object) -> TensorRef:
    if not isinstance(storage, StorageRef) or not isinstance(offset, int) or offset < 0:
        raise ValueError("a tensor without a storage")
    ref = TensorRef(storage, offset, size(shape), size(strides))
    if len(ref.shape) != len(ref.strides):
        raise ValueError("a tensor whose shape and strides differ in rank")
    return ref


def tensor_of_bytes(storage: object, offset: object, shape: object, strides: object, *rest: object) -> TensorRef:
    """A tensor of a type that has no storage class of its own: the storage counts bytes."""
    dtype = next((item for item in rest if isinstance(item, ElementType)), None)
    if not isinstance(storage, StorageRef) or dtype is None:
        raise ValueError("a tensor without a storage or a type")
    count = storage.count * DTYPE_BYTES[storage.dtype] // DTYPE_BYTES[dtype.name]
    return tensor(StorageRef(storage.key, dtype.name, count), offset, shape, strides)


def size(values: object = ()) -> Shape:
    """torch.Size, and every tuple that is one."""
    if not isinstance(values, tuple | list) or len(values) > DIMENSIONS_MAX:
        raise ValueError("not a shape")
    if not all(type(n) is int and 0 <= n < COUNT_MAX for n in values):
        raise ValueError("not a shape")
    return tuple(values)


def mapping(pairs: object = (), *_: object) -> dict[object, object]:
    """OrderedDict and defaultdict: filled by later operations, or from a list of pairs in old files."""
    found: dict[object, object] = {}
    for pair in pairs if isinstance(pairs, list | tuple) else ():
        if not isinstance(pair, list | tuple) or len(pair) != 2 or not isinstance(pair[0], str | int):
            raise ValueError("a dict of something else than pairs")
        found[pair[0]] = pair[1]
    return found


def sequence(values: object = (), *_: object) -> list[object]:
    if not isinstance(values, list | tuple):
        raise TypeError("a sequence of something else")
    return list(values)


def first(value: object, *_: object) -> object:
    return value


def retyped(function: object, _kind: object, args: object, _state: object = None) -> object:
    """A tensor with attributes of its own: the tensor."""
    if not isinstance(function, Global) or not isinstance(args, tuple):
        raise TypeError("a tensor rebuilt by something else than a function")
    if function.name == "_rebuild_from_type_v2":  # the file could nest it without end
        raise ValueError("a tensor rebuilt twice")
    return made(function, args)


def encoded(text: object, encoding: object) -> bytes:
    """How protocol 2 writes bytes."""
    if not isinstance(text, str) or encoding not in ("latin1", "latin-1"):
        raise ValueError("bytes in an encoding other than latin1")
    return text.encode("latin-1")


def number(dtype: object, raw: object) -> bool | int | float:
    """A numpy scalar of this machine's byte order: schedulers leave them in hyper-parameters."""
    code = dtype.fields.get("code") if isinstance(dtype, Record) and dtype.kind == "dtype" else None
    state = dtype.fields.get("state") if isinstance(dtype, Record) else None
    layout = NUMBERS.get(code) if isinstance(code, str) else None
    if layout is None or not isinstance(raw, bytes) or len(raw) != struct.calcsize(layout):
        raise ValueError("a numpy scalar of another form")
    if isinstance(state, tuple) and len(state) > 1 and state[1] not in ("<", "|", "="):
        raise ValueError("a numpy scalar of another byte order")
    found: bool | int | float = struct.unpack(layout, raw)[0]
    return found


def numpy_type(code: object, *_: object) -> Record:
    return Record("dtype", {"code": code})


def path(*parts: object) -> str:
    if not all(isinstance(part, str) for part in parts) or sum(len(str(part)) for part in parts) > PATH_CHARACTERS_MAX:
        raise ValueError("a path of something else than names")
    return "/".join(str(part) for part in parts)


def text(value: object, *_: object) -> str:
    if not isinstance(value, str):
        raise TypeError("a name that is no text")
    return value


CALLS: MappingProxyType[str, Callable[..., object]] = MappingProxyType(
    {
        "collections.OrderedDict": mapping,
        "collections.defaultdict": lambda *_: {},
        "collections.deque": sequence,
        "builtins.set": sequence,
        "builtins.frozenset": sequence,
        "builtins.list": sequence,
        "builtins.tuple": lambda *args: tuple(sequence(*args)),
        "builtins.dict": mapping,
        "builtins.bytes": lambda *args: encoded(*(args or ("", "latin1"))),
        "torch.Size": size,
        "torch.device": text,
        "torch._utils._rebuild_tensor_v2": tensor,
        "torch._utils._rebuild_tensor_v3": tensor_of_bytes,
        "torch._utils._rebuild_tensor": tensor,
        "torch._utils._rebuild_parameter": first,
        "torch._utils._rebuild_parameter_with_state": first,
        "torch._tensor._rebuild_from_type_v2": retyped,
        "torch.serialization._get_layout": text,
        "_codecs.encode": encoded,
        "numpy.dtype": numpy_type,
        "numpy.core.multiarray.scalar": number,
        "numpy._core.multiarray.scalar": number,
        "pathlib.PosixPath": path,
        "pathlib.PurePosixPath": path,
    }
)
