"""everstep: every training step recoverable, exactly.

The public names are loaded when first used, so that `everstep ls` answers without importing torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from everstep.api import Run, open  # noqa: A004
    from everstep.capture.buckets import Bucket, Buckets
    from everstep.integrations.loader import Loader, Place
    from everstep.recover.offline import Restored
    from everstep.recover.restore import restore
    from everstep.settings import Settings

__version__ = "0.1.0"
__all__ = [
    "Bucket", "Buckets", "Loader", "Place", "Restored", "Run", "Settings", "__version__", "errors", "open", "restore",
]  # fmt: skip

_HOME = {
    "Bucket": "everstep.capture.buckets",
    "Buckets": "everstep.capture.buckets",
    "Loader": "everstep.integrations.loader",
    "Place": "everstep.integrations.loader",
    "Restored": "everstep.recover.offline",
    "Run": "everstep.api",
    "Settings": "everstep.settings",
    "open": "everstep.api",
    "restore": "everstep.recover.restore",
}


def __getattr__(name: str) -> Any:
    if name in ("errors", "integrations"):
        return import_module(f"everstep.{name}")
    if name in _HOME:
        return getattr(import_module(_HOME[name]), name)
    raise AttributeError(f"module 'everstep' has no attribute {name!r}")
