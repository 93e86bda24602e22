"""Names of what a save leaves. Made and parsed here only; a file whose name does not parse is not ours and stays.

<name>/
  .metadata                       torch's own index; replacing it is the commit
  __0_3fa2c1d09b7e_0.distcp       torch's own data files, under names that no other save uses
  everstep-<32 digits>.json       the record: places and checksums; the digits are the checksum of its `.metadata`
  everstep.lease                  locked while a save is under way
.<name>.everstep/                 the same, before the save is whole and the folder gets its name
"""

import os
import re

import xxhash

METADATA = ".metadata"
LEASE = "everstep.lease"
SAVE_DIGITS = 12
RECORD = re.compile(r"everstep-[0-9a-f]{32}\.json", re.ASCII)
PARTS = re.compile(r"__\d{1,9}_[0-9a-f]{12}_\d{1,9}\.distcp", re.ASCII)
TORCHS = re.compile(r"__\d{1,9}_\d{1,9}\.distcp", re.ASCII)
"""Data files of torch's own writer."""
TEMPORARY = re.compile(r"\.(?:\.metadata|everstep-[0-9a-f]{32}\.json)\.[0-9a-f]{12}\.tmp", re.ASCII)
STAGING = re.compile(r"\..+\.everstep")


def record(metadata: bytes) -> str:
    """The record that belongs to these bytes of `.metadata` and to no others."""
    return f"everstep-{xxhash.xxh3_128_hexdigest(metadata)}.json"


def staging(path: str) -> str:
    """Where the parts of a new checkpoint lie until all of them are durable: beside it, hidden."""
    parent, name = os.path.split(path)
    return os.path.join(parent, f".{name}.everstep")


def ours(name: str) -> bool:
    """Whether a save of ours wrote a file of this name, `.metadata` and the lease aside."""
    return any(pattern.fullmatch(name) for pattern in (PARTS, RECORD, TEMPORARY))
