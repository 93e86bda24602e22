"""Names of everything in a run. Made and parsed here only; a name that does not parse is not ours and is ignored.

run.json                            what this directory is
reserve                             room for pruning on a full disk
w00000/                             one writer (rank)
  lease                             locked while a process owns this writer
  e00000001.json                    manifest of epoch 1; the highest epoch counts
  e00000001.ack                     witness: newest acknowledged step of epoch 1
  e00000001-00000000.seg            first segment of epoch 1
  b000000000120-e00000001.json      base of step 120: index
  b000000000120-e00000001.safetensors                and its tensors
"""

import re
from collections.abc import Iterable

RUN = "run.json"
RESERVE = "reserve"
# ASCII: \d alone also takes the digits of other scripts, and the name made from the number would be another file's.
TEMPORARY = re.compile(r"\.[a-z0-9.-]{0,20}e(\d{8})[a-z0-9.-]{0,20}\.[0-9a-f]{12}\.tmp", re.ASCII)
WRITER = re.compile(r"w(\d{5})", re.ASCII)
MANIFEST = re.compile(r"e(\d{8})\.json", re.ASCII)
WITNESS = re.compile(r"e(\d{8})\.ack", re.ASCII)
SEGMENT = re.compile(r"e(\d{8})-(\d{8})\.seg", re.ASCII)
BASE = re.compile(r"b(\d{12})-e(\d{8})\.(json|safetensors)", re.ASCII)


def writer(rank: int) -> str:
    return f"w{rank:05d}"


def lease(rank: int) -> str:
    return f"{writer(rank)}/lease"


def manifest(rank: int, epoch: int) -> str:
    return f"{writer(rank)}/e{epoch:08d}.json"


def witness(rank: int, epoch: int) -> str:
    return f"{writer(rank)}/e{epoch:08d}.ack"


def segment(rank: int, epoch: int, sequence: int) -> str:
    return f"{writer(rank)}/e{epoch:08d}-{sequence:08d}.seg"


def base(rank: int, step: int, epoch: int) -> str:
    return f"{writer(rank)}/b{step:012d}-e{epoch:08d}.json"


def tensors(rank: int, step: int, epoch: int) -> str:
    return f"{writer(rank)}/b{step:012d}-e{epoch:08d}.safetensors"


def ranks(directory: Iterable[str]) -> list[int]:
    """The writers whose directories are among these names."""
    return sorted(int(found[1]) for name in directory if (found := WRITER.fullmatch(name)))


def epoch_of(name: str) -> int | None:
    """The epoch whose owner wrote the file of this name, or None when the name is not ours."""
    for pattern, group in ((MANIFEST, 1), (WITNESS, 1), (SEGMENT, 1), (BASE, 2), (TEMPORARY, 1)):
        if match := pattern.fullmatch(name):
            return int(match[group])
    return None


def short(path: str) -> str:
    """The name as messages show it."""
    return path.rpartition("/")[2]
