"""A state without the training program, as plain tensors by name, whoever wrote it."""

import os

from everstep.errors import StepNotHeld
from everstep.log.inventory import survey
from everstep.recover import choose
from everstep.recover.cohort import inventories, stand
from everstep.recover.offline import Restored, follow
from everstep.recover.together import joined
from everstep.store import cohort as cohorts
from everstep.store.disk import Disk, existing
from everstep.url import split_url


def restore(url: str | os.PathLike[str], step: int | None = None) -> Restored:
    """The state at a step, the newest by default, without a model. Reads only; a running trainer is not disturbed.

    `url` may end in `#EPOCH` to look at an older branch of the run. What several writers hold is put together.
    """
    path, epoch = split_url(url)
    disk = existing(path)
    try:
        if epoch is None and cohorts.load_all(disk):
            return _together(disk, path, step)
        routes = choose.routes(survey(disk, path, epoch=epoch), step)
        if not routes:
            raise StepNotHeld(f"{path}: the run holds no step yet.")
        return follow(disk, 0, routes).restored
    finally:
        disk.release()


def _together(disk: Disk, path: str, step: int | None) -> Restored:
    found = stand(disk, path, step)
    held = inventories(disk, path, found.epochs) if found is not None else None
    if found is None or held is None:
        raise StepNotHeld(f"{path}: the run holds no step yet.")
    return joined([follow(disk, rank, choose.routes(own, found.step)) for rank, own in enumerate(held)])
