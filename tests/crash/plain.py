"""The torch-free workload on a real file system, with the keeper's real threads; it reports as a training does."""

import random
from collections import defaultdict
from collections.abc import Callable
from typing import Any

from everstep.store.disk import LocalDisk, created
from tests.crash import truth as truth_module
from tests.crash.truth import Truth
from tests.crash.verdict import judge
from tests.crash.workload import START, Session


def body(step: int) -> bytes:
    rng = random.Random(step)
    return rng.randbytes(rng.choice((1, 300, 700, 2500, 9000)))


def expected(steps: int) -> dict[int, str]:
    """The state after every step."""
    states = {0: START}
    for step in range(1, steps + 1):
        states[step] = truth_module.after(states[step - 1], body(step))
    return {step: state.hex() for step, state in states.items()}


def train(path: str, steps: int, report: Callable[[str], None], *, wait_every: int = 0) -> None:
    """Resume, go on up to `steps` with a base now and then, close."""
    disk = created(path)
    states = {step: bytes.fromhex(state) for step, state in expected(steps).items()}
    truth = Truth(defaultdict(lambda: dict(states)), defaultdict(lambda: -1))
    session = Session(disk, truth, random.Random(0), threads=True)
    if session.step and (wrong := judge(LocalDisk(path), truth)):
        raise AssertionError(wrong)
    keeper: Any = session.keeper
    report(f"resumed {session.step} {session.state.hex()}")
    acknowledged = keeper.acknowledged
    report(f"acknowledged {acknowledged}")
    session._body = lambda: body(session.step + 1)
    while session.step < steps:
        keeper.idle(60.0)
        session.commit(with_base=session.step % 7 == 3 and keeper.idle(0.0))
        report(f"committed {session.step} {session.state.hex()}")
        if wait_every and session.step % wait_every == 0 and not keeper.wait(session.step, 60.0):
            raise AssertionError(f"not acknowledged: {keeper.health}")
        if keeper.acknowledged > acknowledged:
            acknowledged = keeper.acknowledged
            report(f"acknowledged {acknowledged}")
    keeper.wait(session.step, 60.0)
    keeper.close(10.0)
    session._lease.release()
    report(f"acknowledged {keeper.acknowledged}")
