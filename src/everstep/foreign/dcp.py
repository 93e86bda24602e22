"""torch.distributed.checkpoint: `.metadata` and `.distcp` files, also as Megatron's `torch_dist` writes them.

Every chunk is an archive of torch.save inside a data file; its type and shape are compared with what `.metadata` says.
Megatron's layers stay stacked as they are stored: `model/decoder.layers...` has the layer as its first axis.
"""

import json
import os
import re
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass

from everstep.errors import Damaged, Unsupported
from everstep.foreign import metadata, names, plain, saved
from everstep.foreign.files import File, listed
from everstep.foreign.found import Checkpoint, Part, Place, Stored
from everstep.foreign.inert import TensorRef
from everstep.foreign.metadata import Index, Sharded, Stretch
from everstep.foreign.names import Arranged
from everstep.foreign.plain import Tree
from everstep.frugal import refuse_bomb
from everstep.types import Box, whole

JSON_BYTES_MAX = 1 << 20
OPEN_MAX = 64
MEGATRON_OPTIMIZER = re.compile(r"(?:chained_\d+\.)?optimizer\.")
MEGATRON_STATE = re.compile(r"(?:chained_\d+\.)?optimizer\.state\.([^.]+)\.(.+)")
BARE = ".metadata carries no checksum: names, shapes and places were compared with each other and the data files only."


def read(folder: str) -> Checkpoint:
    """Everything that the folder's `.metadata` lists. No tensor is read, nothing is executed."""
    present = listed(folder)
    megatron = "metadata.json" in present
    if "common.pt" in present and not megatron:
        raise Damaged(f"{folder}: Megatron writes metadata.json last, and it is missing: this save was not finished.")
    index = metadata.read(folder)
    with ExitStack() as stack:
        data = DataFiles(os.path.join(folder, metadata.NAME), {}, stack)
        values = {name: data.value(stretch) for name, stretch in index.values.items()}
        tensors = {name: data.tensor(name, sharded) for name, sharded in index.tensors.items()}
    found = _megatron(folder, tensors, values) if megatron else _nested(folder, index, tensors, values)
    found.notes += [BARE, *_unused(folder, index)]
    return found.checkpoint("megatron torch_dist" if megatron else "torch.distributed.checkpoint")


@dataclass(slots=True)
class DataFiles:
    """The data files, a few of them open at a time."""

    index: str
    held: dict[str, File]
    stack: ExitStack

    def tensor(self, name: str, sharded: Sharded) -> Stored:
        """Where each chunk's elements are."""
        parts = tuple(part for box, stretch in sharded.chunks for part in self._chunk(name, sharded, box, stretch))
        if not parts:  # a tensor without elements needs no place, and is not to be lost for that
            parts = ((whole(sharded.shape), Place(self.index, 0, 0)),)
        return Stored(sharded.dtype, sharded.shape, parts)

    def value(self, stretch: Stretch) -> Tree:
        opened = saved.within(self._file(stretch.path), stretch.offset, stretch.nbytes)
        return plain.tree(opened, opened.tree)

    def _chunk(self, name: str, sharded: Sharded, box: Box, stretch: Stretch) -> Iterator[Part]:
        opened = saved.within(self._file(stretch.path), stretch.offset, stretch.nbytes)
        ref = opened.tree
        # Megatron stores a layer without the axes that it prepends to place it.
        if not isinstance(ref, TensorRef) or ref.dtype != sharded.dtype or _long(ref.shape) != _long(box.shape):
            raise Damaged(
                f"{stretch.path}: byte {stretch.offset} should hold {list(box.shape)} of {sharded.dtype} for {name!r}, "
                f"and holds something else. .metadata and data files are of different saves, or one is damaged."
            )
        for inner, place in opened.stored(ref).parts:
            if inner == whole(ref.shape):
                yield box, place
            elif ref.shape == box.shape:  # stored in another order of axes: several boxes
                low = tuple(map(sum, zip(box.low, inner.low, strict=True)))
                yield Box(low, tuple(map(sum, zip(box.low, inner.high, strict=True)))), place
            else:
                raise Unsupported(f"{stretch.path}: a part of {name!r} is not in row-major order.")

    def _file(self, path: str) -> File:
        if path not in self.held:
            if len(self.held) >= OPEN_MAX:
                self.held.clear()
                self.stack.pop_all().close()
            self.held[path] = self.stack.enter_context(File(path))
        return self.held[path]


def _nested(folder: str, index: Index, tensors: dict[str, Stored], values: dict[str, Tree]) -> Arranged:
    """The state dict that was saved, from the paths that the writer kept."""
    where = os.path.join(folder, metadata.NAME)
    held = tensors | values
    # The writer kept the paths in the order of the state dict; the entries come rank by rank.
    order = [*(name for name in index.paths if name in held), *(name for name in held if name not in index.paths)]
    entries = {index.paths.get(name, (name,)): held[name] for name in order}
    if len(entries) != len(tensors) + len(values):
        raise Damaged(f"{where}: two entries have one path. Copy it again.")
    return names.arranged(names.grown(entries, where), folder)


def _megatron(folder: str, tensors: dict[str, Stored], values: dict[str, Tree]) -> Arranged:
    has_common = _expect_torch_dist(os.path.join(folder, "metadata.json"))
    common = os.path.join(folder, "common.pt")
    shared = _common(common if has_common or os.path.exists(common) else None, values)
    found, buckets = names.arranged(shared, folder, has_model=False), 0
    for name, stored in tensors.items():
        if match := MEGATRON_STATE.fullmatch(name):
            found.add(f"optimizer/{match[1]}/{match[2]}", stored)
        elif MEGATRON_OPTIMIZER.match(name):
            buckets += 1
            found.add(f"other/{name}", stored)
        else:
            found.add(f"model/{name}", stored)
    if buckets:
        found.notes.append(
            f"{buckets} tensors of the optimizer are buckets (dp_reshardable) whose order only the training program "
            f"knows; they are named 'other/..' as stored. Save with 'fully_reshardable' to name them by parameter."
        )
    return found


def _common(path: str | None, values: dict[str, Tree]) -> Tree:
    """What all ranks share: in common.pt, or in newer releases as a value of its own."""
    tree: dict[str | int, Tree] = {}
    if path is not None:
        opened = saved.load(path)
        common = plain.tree(opened, opened.tree)
        tree |= common if isinstance(common, dict) else {"common": common}
    for name, value in values.items():
        inner = value[0] if isinstance(value, list) and len(value) == 1 else value
        if name.startswith("common_state/") and isinstance(inner, dict):
            tree |= inner
        else:
            tree[name] = value
    return tree


def _expect_torch_dist(path: str) -> bool:
    """Whether there must be a common.pt; Unsupported when another backend wrote the tensors."""
    with File(path) as file:
        content = file.read(0, min(file.size, JSON_BYTES_MAX))
    refuse_bomb(content, name=path)
    try:
        said = json.loads(content)
        backend = said["sharded_backend"], said["sharded_backend_version"]
    except (ValueError, KeyError, TypeError, RecursionError) as wrong:
        raise Damaged(f"{path}: does not say how the checkpoint was written. Copy it again.") from wrong
    if backend != ("torch_dist", 1):
        raise Unsupported(f"{path}: the backend {str(backend)[:100]} is not read, only torch_dist 1.")
    return bool(said.get("common_backend") == "torch")


def _long(shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(n for n in shape if n != 1)


def _unused(folder: str, index: Index) -> list[str]:
    used = {os.path.basename(one.path) for one in index.values.values()}
    used |= {os.path.basename(stretch.path) for one in index.tensors.values() for _, stretch in one.chunks}
    stale = [name for name in listed(folder) if name.endswith(".distcp") and name not in used]
    return [f"{len(stale)} data files are left from another save and were not read: {stale[0]} ..."] if stale else []
