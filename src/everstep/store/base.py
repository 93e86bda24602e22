"""A whole state on disk: one safetensors file, so that other tools can read it, and a typed index with digests.

The files are written and synced first; the base exists once the manifest names it (`keeper`). Complex tensors are
stored as pairs of reals, because safetensors has no 16-byte complex type; the index holds the real type.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

import msgspec
import xxhash

from everstep.errors import Damaged
from everstep.store import document, names
from everstep.store.disk import Disk, Files, write_new
from everstep.store.manifest import BaseEntry
from everstep.types import ALIGN, DTYPE_BYTES, Box, Bytes, DataPlace, Local, Pair, Tensor, boxed, combine

REALS = {"C64": "F32", "C128": "F64"}


class Stored(msgspec.Struct, frozen=True):
    """A tensor of a base: what it is, where its bytes lie in the safetensors file, and its digest."""

    tensor: Tensor
    offset: int
    digest: str


class Group(msgspec.Struct, frozen=True):
    """A param group: its parameters by name, its hyper-parameters as a tree."""

    parameters: tuple[str, ...]
    hyper: Any


class OptimizerEntry(msgspec.Struct, frozen=True):
    """An optimizer. `state` holds what is not a tensor, and names what is."""

    key: str
    kind: str
    groups: tuple[Group, ...]
    state: dict[str, Any]

    @property
    def unowned(self) -> dict[str, Any]:
        """What it keeps for no parameter but under a text, by that text."""
        owners = {name for group in self.groups for name in group.parameters}
        return {name[1:]: held for name, held in self.state.items() if name[:1] == "#" and name not in owners}


class Beside(msgspec.Struct, frozen=True, array_like=True):
    """Which box of a tensor a writer held, and its digest."""

    box: Box
    digest: str


class Content(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a base says besides its tensors. `far`: scalars of optimizer state that lay in device memory."""

    optimizers: tuple[OptimizerEntry, ...]
    aliases: dict[str, str]
    derived: tuple[str, ...]
    context: dict[str, Any]
    parameters: str
    state: str
    versions: dict[str, str]
    far: tuple[str, ...] = ()
    layout: dict[str, Local] = {}
    """Of parameters that are parts of others: which. The rest are what their boxes say."""
    beside: dict[str, Beside] = {}
    """Tensors that the writer held, and that another wrote who held the same."""
    place: DataPlace | None = None
    """Of the data that the writer read, if it said so."""


class Index(msgspec.Struct, frozen=True, dict=True):
    run: str
    writer: int
    writers: int
    step: int
    epoch: int
    header_bytes: int
    header_checksum: str
    nbytes: int
    tensors: tuple[Stored, ...]
    content: Content

    @cached_property
    def held(self) -> dict[str, Local]:
        """Which parts of which logical tensors the writer's parameters are, by its own names of them."""
        tensors = {
            s.tensor.name.removeprefix("model/"): s.tensor for s in self.tensors if s.tensor.name[:6] == "model/"
        }
        layout = self.content.layout
        return {name: layout.get(name) or boxed(name, told.shape, told.box) for name, told in tensors.items()}


def state_digest(digests: Mapping[str, Pair]) -> str:
    """One digest of parameters and optimizer state; buffers and the rest travel in every record as they are."""
    return combine((name, pair) for name, pair in digests.items() if name.startswith(("model/", "optimizer/")))


def parameters_digest(digests: Mapping[str, Pair]) -> str:
    """One digest of the parameters alone."""
    return combine((name, pair) for name, pair in digests.items() if name.startswith("model/"))


def shared(content: Content, owned: frozenset[str], tensors: Iterable[str]) -> tuple[Content, set[str]]:
    """What a base says that holds the parameters `owned` alone, and which of the tensors it does not hold then.

    Param groups stay, also without a parameter: records speak of them by their place.
    """
    others = {name for name in tensors if name.startswith("model/") and name.removeprefix("model/") not in owned}
    optimizers = []
    for entry in content.optimizers:
        away = entry.state.keys() - owned - {f"#{text}" for text in entry.unowned}
        others |= {tensor for name in away for tensor in named(entry.state[name])}
        groups = tuple(Group(tuple(n for n in group.parameters if n in owned), group.hyper) for group in entry.groups)
        state = {name: held for name, held in entry.state.items() if name not in away}
        optimizers.append(OptimizerEntry(entry.key, entry.kind, groups, state))
    return msgspec.structs.replace(
        content, optimizers=tuple(optimizers), far=tuple(name for name in content.far if name not in others),
        aliases={alias: name for alias, name in content.aliases.items() if name in owned},
        layout={name: held for name, held in content.layout.items() if name in owned},
    ), others  # fmt: skip


def named(tree: Any) -> Iterator[str]:
    """The tensors that a tree names."""
    if isinstance(tree, list):
        for inner in tree:
            yield from named(inner)
    elif isinstance(tree, dict):
        if tree.get("$") in ("tensor", "ndarray") and isinstance(tree.get("v"), str):
            yield tree["v"]
        for inner in tree.values():
            yield from named(inner)


def write(
    disk: Disk,
    run: str,
    rank: int,
    step: int,
    epoch: int,
    tensors: Sequence[tuple[Tensor, Bytes, str]],
    content: Content,
) -> BaseEntry:
    """Write both files and sync them and their names. Leftovers of the same name are replaced."""
    ordered = sorted(tensors, key=lambda item: (-DTYPE_BYTES[item[0].dtype], item[0].name))
    stored, end = [], 0
    for tensor, _, digest in ordered:
        stored.append(Stored(tensor, end, digest))
        end += tensor.nbytes
    header = safetensors_header(stored, step)
    index = Index(
        run,
        rank,
        1,
        step,
        epoch,
        len(header),
        xxhash.xxh3_128_hexdigest(header),
        len(header) + end,
        tuple(stored),
        content,
    )
    text = document.pack("base", index)
    held: list[Bytes] = [header, *(data for _, data, _ in ordered)]
    for path, pieces in ((names.tensors(rank, step, epoch), held), (names.base(rank, step, epoch), [text])):
        if disk.exists(path):
            disk.remove(path)
        write_new(disk, path, pieces)
    disk.sync_dir(names.writer(rank))
    return BaseEntry(step, epoch, index.nbytes + len(text), xxhash.xxh3_128_hexdigest(text))


def safetensors_header(stored: Sequence[Stored], step: int, notes: Mapping[str, str] | None = None) -> bytes:
    """The start of a safetensors file, padded with spaces so that the tensors are aligned."""
    table: dict[str, Any] = {"__metadata__": {"format": "pt", "everstep": f"step {step}", **(notes or {})}}
    for item in stored:
        shape = list(item.tensor.box.shape)
        dtype = item.tensor.dtype
        if dtype in REALS:
            dtype, shape = REALS[dtype], [*shape, 2]
        table[item.tensor.name] = {
            "dtype": dtype, "shape": shape, "data_offsets": [item.offset, item.offset + item.tensor.nbytes]
        }  # fmt: skip
    text = msgspec.json.encode(table)
    text += b" " * (-(8 + len(text)) % ALIGN)
    return len(text).to_bytes(8, "little") + text


def load(disk: Files, rank: int, entry: BaseEntry) -> Index:
    """The index of a base, checked against the manifest and against the length of the tensor file."""
    path = names.base(rank, entry.step, entry.epoch)
    try:
        data = document.load_bytes(disk, path)
        if xxhash.xxh3_128_hexdigest(data) != entry.checksum:
            raise Damaged(f"base {names.short(path)}: its index fails its checksum.")
        index = document.parse(data, "base", Index, name=path)
        if (index.writer, index.step, index.epoch) != (rank, entry.step, entry.epoch):
            raise Damaged(f"base {names.short(path)}: it is of step {index.step}, epoch {index.epoch}.")
        source = disk.source(names.tensors(rank, entry.step, entry.epoch))
        try:
            _check(index, source.size, path)
            if xxhash.xxh3_128_hexdigest(source.read(0, index.header_bytes)) != index.header_checksum:
                raise Damaged(f"base {names.short(path)}: the head of its tensor file fails its checksum.")
        finally:
            source.close()
    except (OSError, EOFError) as gone:
        raise Damaged(f"base {names.short(path)}: cannot be read ({gone}).") from gone
    return index


def _check(index: Index, size: int, path: str) -> None:
    name, end = names.short(path), 0
    seen: set[str] = set()
    if index.nbytes != size or not 8 <= index.header_bytes <= size:
        raise Damaged(f"base {name}: its tensor file is {size} bytes long, {index.nbytes} were written.")
    for stored in index.tensors:
        if fault := stored.tensor.fault():
            raise Damaged(f"base {name}: {fault}.")
        if stored.offset != end:
            raise Damaged(f"base {name}: tensor {stored.tensor.name!r} does not follow the one before it.")
        if stored.tensor.name in seen:
            raise Damaged(f"base {name}: tensor {stored.tensor.name!r} is there twice.")
        seen.add(stored.tensor.name)
        end += math.prod(stored.tensor.box.shape) * DTYPE_BYTES[stored.tensor.dtype]
    if index.header_bytes + end != size:
        raise Damaged(f"base {name}: its tensors do not fill its file.")
    held = {stored.tensor.name: stored.tensor.box.shape for stored in index.tensors}
    for parameter, local in index.content.layout.items():
        if fault := local.fault() or ("" if held.get(f"model/{parameter}") == local.shape else "it is not so long"):
            raise Damaged(f"base {name}: the layout of {parameter!r} cannot be: {fault}.")
