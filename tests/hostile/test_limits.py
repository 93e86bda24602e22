"""A file makes us allocate at most its own size and 64 MiB, whatever numbers stand in it."""

import subprocess
import sys
from pathlib import Path

from tests.hostile.forge import Pieces, with_base, with_manifest, with_records
from tests.hostile.tiny import Files, write_files

READ = """
import resource, sys
sys.path.insert(0, sys.argv[1])
import torch
from everstep.errors import EverstepError
from everstep.store.disk import existing
from tests.hostile.tiny import prove
torch.set_num_threads(1)
for run, room in zip(sys.argv[2::2], map(int, sys.argv[3::2])):
    disk = existing(run)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    held = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (held + room, resource.RLIM_INFINITY))
    try:
        prove(disk)
        said = "read"
    except EverstepError as refused:
        said = type(refused).__name__
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) << 10
    print(said if grown <= room else f"took {grown} bytes, had {room}")
"""
ROOT = Path(__file__).parents[2]
SLACK = 64 << 20


def verdicts(runs: list[Files], where: Path) -> list[str]:
    """What a reader with room for the files and 64 MiB says of each run; one process, so that torch is loaded once."""
    arguments: list[str] = [str(ROOT)]
    for at, files in enumerate(runs):
        arguments += [str(write_files(files, where / f"run{at}")), str(sum(map(len, files.values())) + SLACK)]
    done = subprocess.run(
        [sys.executable, "-c", READ, *arguments], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split("\n")[:-1]


def huge_body(files: Files, length: int) -> Files:
    """A record whose body claims a head of `length` bytes, with good checksums all the way down."""
    return with_records(files, 2, 1, lambda _step, _pieces: length.to_bytes(8, "little") + bytes(56))


def huge_table(files: Files, shape: list[int], nbytes: int) -> Files:
    def lie(_step: int, pieces: Pieces) -> Pieces:
        head, blobs = pieces
        head["blobs"] = [["x", "F32", shape, [[0] * len(shape), shape], nbytes]]
        return head, blobs

    return with_records(files, 2, 1, lie)


def huge_tensor(files: Files, count: int) -> Files:
    def lie(index: dict) -> None:
        index["tensors"][0]["tensor"][2:] = [[count], [[0], [count]], 8 * count]
        index["nbytes"] = index["header_bytes"] + 8 * count

    return with_base(files, 6, 2, lie)


def huge_segment(files: Files, nbytes: int) -> Files:
    return with_manifest(files, lambda plain: plain["segments"][-1].update(nbytes=nbytes))


def huge_frame(files: Files) -> Files:
    """An active segment whose first record claims 2^60 bytes, with a good chain."""
    from everstep.log import frame

    path = "w00000/e00000002-00000001.seg"
    head = files[path][: frame.SEGMENT_BYTES]
    chain = frame.parse_head(head).chain
    import xxhash

    claim = frame.FRAME.pack(frame.MAGIC, frame.UPDATE, 1 << 60, 8, 2, 7, 0, 0, 0)[:56]
    return files | {path: head + claim + xxhash.xxh3_64_intdigest(claim, chain).to_bytes(8, "little") + bytes(512)}


CASES = {
    "a head of 2^40 bytes": lambda files: huge_body(files[0], 1 << 40),
    "a head of 2^64 - 1 bytes": lambda files: huge_body(files[0], (1 << 64) - 1),
    "a table of 2^50 bytes": lambda files: huge_table(files[0], [1 << 48], 1 << 50),
    "a table that wraps round": lambda files: huge_table(files[0], [1 << 62], 0),
    "a tensor of 2^40 numbers": lambda files: huge_tensor(files[0], 1 << 40),
    "a segment of 2^50 bytes": lambda files: huge_segment(files[0], 1 << 50),
    "a record of 2^60 bytes": lambda files: huge_frame(files[1]),
}


def many_values(files: Files, count: int) -> Files:
    """An index whose context is a list of empty lists: three bytes each in the file, sixty in memory."""
    return with_base(files, 6, 2, lambda index: index["content"]["context"].update(x=[[]] * count))


def long_tail(files: Files) -> Files:
    path = "w00000/e00000002-00000001.seg"
    return files | {path: files[path] + b"\1" * (100 << 20)}


def test_a_length_is_checked_before_memory_is_taken(runs: tuple[Files, Files], tmp_path: Path) -> None:
    said = verdicts([case(runs) for case in CASES.values()], tmp_path)
    assert dict(zip(CASES, said, strict=True)) == dict.fromkeys(CASES, "Damaged")


def test_a_torn_tail_is_held_in_memory_once(runs: tuple[Files, Files], tmp_path: Path) -> None:
    """Two copies of these 100 MiB would be more than the file and 64 MiB."""
    assert verdicts([long_tail(runs[1])], tmp_path) == ["read"]


def test_values_of_an_index_cost_no_more_than_64_mib_up_to_a_megabyte(
    runs: tuple[Files, Files], tmp_path: Path
) -> None:
    """FORMAT.md states the limit: JSON grows up to 24-fold in memory, so the promise holds for what is honest."""
    assert verdicts([many_values(runs[0], 350_000)], tmp_path) == ["read"]
