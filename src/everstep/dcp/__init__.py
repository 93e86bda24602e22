"""`Writer` and `Reader` for torch.distributed.checkpoint: the same calls, with a commit, checksums and coverage.

The two are loaded when first used, so that `everstep verify` can prove such a checkpoint without importing torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from everstep.dcp.reader import Reader
    from everstep.dcp.writer import Writer

__all__ = ["Reader", "Writer"]

_HOME = {"Reader": "everstep.dcp.reader", "Writer": "everstep.dcp.writer"}


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(import_module(_HOME[name]), name)
    raise AttributeError(f"module 'everstep.dcp' has no attribute {name!r}")
