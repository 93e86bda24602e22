"""What a pickled file can say, as values that do nothing.

A pickle names classes and functions and asks for them to be called. Here the names stay names: what is known becomes a
number, a dict, a `TensorRef` or a `Record`; everything else is an `Unknown` that is kept and never asked to do a thing.
None of these compares or hashes by content: a few bytes of pickle can describe a value of 2**60 nodes.
"""

from dataclasses import dataclass, field

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Global:
    """A name that the file wanted imported."""

    module: str
    name: str

    @property
    def dotted(self) -> str:
        return f"{self.module}.{self.name}"


@dataclass(frozen=True, slots=True, eq=False)
class ElementType:
    """A torch dtype, or a storage class that implies one; `name` as in DTYPE_BYTES."""

    name: str


@dataclass(frozen=True, slots=True, eq=False)
class StorageRef:
    """A member of the archive that holds `count` elements."""

    key: str
    dtype: str
    count: int


@dataclass(frozen=True, slots=True, eq=False)
class TensorRef:
    """A view of a storage: offset and strides in elements."""

    storage: StorageRef
    offset: int
    shape: Shape
    strides: Shape

    @property
    def dtype(self) -> str:
        return self.storage.dtype


@dataclass(slots=True, eq=False)
class Record:
    """An instance of a class that we know to be fields and nothing else. `kind` is the class's short name."""

    kind: str
    fields: dict[str, object] = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class Unknown:
    """An instance, or a call's result, of something that we do not know."""

    of: Global
    args: tuple[object, ...] = ()
    state: object = None
    items: list[object] = field(default_factory=list)
