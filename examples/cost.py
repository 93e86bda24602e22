"""What a commit costs: the same loop with and without everstep, taking turns in one process.

python examples/cost.py runs/cost
"""

import statistics
import sys
import time
from pathlib import Path

from train import Program, say

TURNS, STEPS = 6, 10


def main() -> None:
    plain, recorded = Program(10_000), Program(10_000)
    times: dict[bool, list[float]] = {False: [], True: []}
    with recorded.open(sys.argv[1]) as run:
        run.resume()
        for turn in range(TURNS):
            for program, with_everstep in ((plain, False), (recorded, True)):
                for _ in range(STEPS):
                    began = time.perf_counter()
                    program.step()
                    if with_everstep:
                        run.commit()
                    times[with_everstep].append(time.perf_counter() - began)
                if with_everstep:
                    run.wait()  # what is still being written must not be counted as the other's cost
            say("turn", turn + 1, TURNS)
    without, having = (statistics.median(times[key][STEPS // 2 :]) for key in (False, True))
    say("plain_ms", 1e3 * without)
    say("with_ms", 1e3 * having)
    say("slowdown_pct", 100 * (having / without - 1))
    logged = sum(path.stat().st_size for path in Path(sys.argv[1]).rglob("*.seg"))
    say("bytes_per_step", logged / (TURNS * STEPS))


if __name__ == "__main__":
    main()
