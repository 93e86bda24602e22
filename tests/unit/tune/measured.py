"""Facts as a machine could measure them, and far beyond; nothing lies on a grid."""

from typing import Any

from hypothesis import strategies as st

from everstep.tune.facts import Facts, Piece, Room

NAMED: dict[str, Any] = {
    "bus_bytes_per_s": 1000.0, "copy_seconds": 0.0, "device_bytes_per_s": 100_000.0, "forward_seconds": 1.0,
    "backward_seconds": 2.0, "optimizer_seconds": 1.0, "gradient_bytes": 0, "interference": 0.0,
    "room": ((0.0, 1 << 40),),
}  # fmt: skip
"""A step of 4 s, a window of 3; 1,000 bytes take a second; memory without end."""


def facts(*nbytes: int, **named: Any) -> Facts:
    """Pieces "0", "1" .. of these sizes; what is not named is as above."""
    return Facts(pieces=tuple(Piece(str(at), size) for at, size in enumerate(nbytes)), **{**NAMED, **named})


@st.composite
def anything(draw: st.DrawFn, pieces_max: int = 6, bytes_min: int = 1) -> Facts:
    """A state that takes a tenth of a step, or four steps; gradients, copies and memory in proportion to it."""
    piece = st.tuples(st.integers(bytes_min, 1 << 20), st.integers(1, 4))
    sizes = draw(st.lists(piece, min_size=1, max_size=pieces_max))
    phases = [draw(st.floats(0.01, 0.2)) for _ in range(3)]
    state, step = sum(nbytes for nbytes, _ in sizes), sum(phases)
    bus = state / (step * draw(st.floats(0.1, 4)))
    return Facts(
        pieces=tuple(Piece(str(at), nbytes, copies) for at, (nbytes, copies) in enumerate(sizes)),
        bus_bytes_per_s=bus,
        copy_seconds=draw(st.sampled_from((0.0, 0.001, 0.03))) * step,
        device_bytes_per_s=bus * draw(st.floats(16, 64)),
        forward_seconds=phases[0],
        backward_seconds=phases[1],
        optimizer_seconds=phases[2],
        gradient_bytes=draw(st.sampled_from((0, 1, 5, 20))) * state // 100,
        interference=draw(st.floats(0, 0.04)),
        room=draw(rooms(step, state)),
    )


@st.composite
def rooms(draw: st.DrawFn, step_seconds: float, state_bytes: int) -> Room:
    shares = draw(st.lists(st.floats(0.01, 0.99), max_size=4, unique=True))
    starts = {0.0, *(step_seconds * share for share in shares)}
    free = st.sampled_from((0.0, 0.1, 0.5, 4.0)).map(lambda states: int(states * state_bytes))
    return tuple((start, draw(free)) for start in sorted(starts))
