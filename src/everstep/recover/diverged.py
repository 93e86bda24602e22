"""Ranks that shared the writing held the same, by contract. Here it is looked at: what each held, against what another
of them wrote for it.
"""

from collections.abc import Sequence

from everstep.errors import Damaged
from everstep.store.base import Index


def refuse_diverged(indexes: Sequence[Index]) -> None:
    """Damaged when a writer held other values than those that were written for it. Bases of other steps say nothing."""
    written = {
        (index.step, stored.tensor.name, stored.tensor.box): (index.writer, stored.digest)
        for index in indexes if not index.content.layout for stored in index.tensors
    }  # fmt: skip
    for index in indexes:
        for name, held in index.content.beside.items():
            owner, digest = written.get((index.step, name, held.box), (index.writer, held.digest))
            if digest != held.digest:
                raise Damaged(
                    f"{name}: at base {index.step} writer {index.writer} held other values than writer {owner}, which "
                    "wrote it for both: the ranks were no replicas of each other. Nothing is handed out. Those of "
                    f"writer {owner} are intact in its base; open() what is trained apart as runs of its own."
                )
