"""A state without the training program, as plain tensors by name, whoever wrote it."""

import os

from everstep.errors import NotARun, StepNotHeld
from everstep.log.inventory import survey
from everstep.recover import choose, others
from everstep.recover.cohort import inventories, stand
from everstep.recover.offline import Restored, follow, follow_ways
from everstep.recover.together import joined
from everstep.store import cohort as cohorts
from everstep.store.disk import Disk, existing
from everstep.url import split_url


def restore(url: str | os.PathLike[str], step: int | None = None) -> Restored:
    """The state at a step, the newest by default, without a model. Reads only; a running trainer is not disturbed.

    `url` may end in `#EPOCH` to look at an older branch of the run. What several writers hold is put together. It may
    also be the checkpoint of another system that `everstep import` knows: that is read where it lies.
    """
    path, epoch = split_url(url)
    try:
        return _run(path, epoch, step)
    except NotARun:
        theirs = others.way(path) if epoch is None else None
        if theirs is None:
            raise
    if step not in (None, theirs.step):
        raise StepNotHeld(f"{path}: holds step {theirs.step} and no other, so not {step}.")
    return follow_ways([theirs]).restored


def _run(path: str, epoch: int | None, step: int | None) -> Restored:
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
