"""Which system wrote a checkpoint, from the names of its files and the first bytes."""

import os
import re

from everstep.errors import Damaged, NotARun, Unsupported
from everstep.foreign import dcp, deepspeed, hf, torch_file, universal
from everstep.foreign.files import File, beside, listed
from everstep.foreign.found import Checkpoint

UNIVERSAL_LATEST = "latest_universal"
MEGATRON_LATEST = "latest_checkpointed_iteration.txt"
PER_RANK = re.compile(r"__\d+\.metadata")
TORCH = (".pt", ".pth", ".bin", ".ckpt")
LOOKED_FOR = (
    "a file of torch.save (zip) or safetensors; a folder with '.metadata' (torch.distributed.checkpoint, Megatron "
    "torch_dist), 'latest' or '*_model_states.pt' (DeepSpeed), 'zero/' or 'latest_universal' (DeepSpeed universal), "
    "'model.safetensors[.index.json]', or one file of torch.save"
)


def read(path: str) -> Checkpoint:
    """The checkpoint at `path`, whoever wrote it; NotARun lists what was looked for. Nothing in it is executed."""
    if os.path.isdir(path):
        return _folder(path)
    if not os.path.exists(path):
        raise NotARun(f"{path}: there is no such file or folder. Check the path.")
    return _file(path)


def _folder(path: str) -> Checkpoint:
    present = listed(path)
    if ".metadata" in present:
        return dcp.read(path)
    if MEGATRON_LATEST in present:
        return dcp.read(_iteration(path))
    if any(PER_RANK.fullmatch(name) for name in present):
        raise Unsupported(
            f"{path}: every rank wrote a .metadata of its own (use_collectives=False), and none for all. "
            f"Save with collectives."
        )
    if any(name.endswith(".distcp") for name in present):
        raise Damaged(
            f"{path}: .metadata, which says what the .distcp files hold, is missing: the save was not finished."
        )
    if "zero" in present:
        return universal.read(path)
    if UNIVERSAL_LATEST in present and "latest" not in present:
        return universal.read(deepspeed.tagged(path, UNIVERSAL_LATEST))
    if "latest" in present or any(deepspeed.MODEL.fullmatch(name) for name in present):
        return deepspeed.read(path)
    if any(name.endswith(hf.SUFFIX) for name in present) or hf.INDEX in present:
        return hf.read(path)
    files = [name for name in present if name.endswith(TORCH)]
    if len(files) == 1:
        return torch_file.read(os.path.join(path, files[0]))
    raise NotARun(f"{path}: no checkpoint that is known here. Looked for {LOOKED_FOR}; it holds {present[:10]}.")


def _file(path: str) -> Checkpoint:
    with File(path) as file:
        first = file.read(0, min(9, file.size))
    if first.startswith(b"PK\x03\x04"):
        return torch_file.read(path)
    if path.endswith(hf.SUFFIX) or (len(first) == 9 and first[8:] == b"{"):
        return hf.read(path)
    if first.startswith(b"\x80"):
        raise Unsupported(f"{path}: a bare pickle, or torch.save before 1.6. Load it with torch and save it again.")
    raise NotARun(f"{path}: no checkpoint that is known here. Looked for {LOOKED_FOR}.")


def _iteration(path: str) -> str:
    """Megatron's newest folder."""
    with File(os.path.join(path, MEGATRON_LATEST)) as file:
        said = file.read(0, min(file.size, 64)).decode(errors="replace").strip()
    name = f"iter_{int(said):07d}" if said.isdecimal() else said
    return beside(path, name, file.path)
