"""The compiled functions; promises are stated here, roundings in adam.hpp, sgd.hpp and docs/decisions/0002."""

from collections.abc import Sequence
from typing import ClassVar, Literal

Implementation = Literal["single", "foreach", "fused"]
Capability = Literal["generic", "avx2", "avx512"]

def digest(
    pointers: Sequence[int], counts: Sequence[int], widths: Sequence[int], starts: Sequence[int], threads: int
) -> list[tuple[int, int]]:
    """Two u64 sums per buffer of `count` elements of `width` (1, 2, 4, 8, 16) bytes; the first has index `start`.

    Sums of parts, modulo 2**64 and with their right starts, are the sums of the whole.
    """

def digest_box(
    address: int,
    shape: Sequence[int],
    steps: Sequence[int],
    width: int,
    first: int,
    indices: Sequence[int],
    threads: int,
) -> tuple[int, int]:
    """The same two sums over a box that lies anyhow: `steps` lead along its axes in memory, `indices` in the digest,
    where its first element has the index `first`; all in elements."""

def gather(sources: Sequence[int], sizes: Sequence[int], target: int, offsets: Sequence[int], threads: int) -> None:
    """Copies sizes[i] bytes from sources[i] to target + offsets[i]."""

def lay(
    source: int, target: int, shape: Sequence[int], source_steps: Sequence[int], target_steps: Sequence[int], width: int
) -> None:
    """Copies a box between two places where it lies anyhow; steps in elements of `width` bytes."""

def store(address: int, value: int) -> None:
    """Writes a 64-bit word that another process reads: whoever sees it sees everything written before it."""

def load(address: int) -> int:
    """Reads such a word."""

class Copies:
    """Copies from device memory to places of a pinned block; made once, sent as often as wanted."""

    def __init__(self, places: Sequence[int], sources: Sequence[int], sizes: Sequence[int]) -> None: ...

class Bus:
    """A thread that brings bytes from a CUDA device to pinned memory, on `stream`, a portion at a time, in order.

    Made for the calling thread's CUDA context; `wakes` is an eventfd that is told of all copies that were asked for.
    Once the driver has refused one, every call raises RuntimeError, and nothing after it says that it arrived.
    `numbers` is the address of the 64-bit numbers from 0 to NUMBERS - 1 on the device, `flag` that of a 0 in pinned
    memory: behind each portion its number is copied there.
    """

    NUMBERS: ClassVar[int]

    def __init__(self, stream: int, wakes: int, numbers: int, flag: int) -> None: ...
    def copy(self, copies: Copies, address: int, training: int, portion_bytes: int) -> int:
        """Into the block at `address`, once stream `training` has come as far as it is queued now. Their number."""

    def write(self, address: int, value: int) -> int:
        """A 64-bit word into pinned memory, after everything before it: who reads it sees every copy before it."""

    def hurry(self, number: int) -> None:
        """Ask for everything up to this number at once. When this returns it is in the stream."""

    def asked(self) -> int:
        """Everything up to this number is in the stream."""

    def close(self) -> None:
        """Ask for everything, and end the thread."""

def adam(
    implementation: Implementation,
    parameters: Sequence[int],
    exp_avgs: Sequence[int],
    exp_avg_sqs: Sequence[int],
    max_exp_avg_sqs: Sequence[int],
    counts: Sequence[int],
    gradients: Sequence[Sequence[int]],
    steps: Sequence[Sequence[float]],
    hyper: Sequence[tuple[float, float, float, float, float]],
    *,
    decoupled: bool,
    maximize: bool,
    double: bool,
    lr_float32: bool,
    square_root: int,
    threads: int,
) -> None:
    """Applies k gradients, in order, to the tensors of one parameter group: torch.optim.Adam, or AdamW if `decoupled`.

    max_exp_avg_sqs: empty unless amsgrad.
    gradients: [k][tensor]; 0 where a tensor had no gradient in that step. They are not written.
    steps: [k][tensor]; the value of state["step"] *after* the update. Ignored where there is no gradient.
    hyper: [k] of (lr, beta1, beta2, eps, weight_decay).
    double: float64 tensors, else float32.
    lr_float32: lr was held as a float32 tensor ("single" only; elsewhere pass lr.item()).
    square_root: 0 for "fused"; else everstep.native.square_root.address(dtype).
    """

def sgd(
    implementation: Implementation,
    parameters: Sequence[int],
    momentum_buffers: Sequence[int],
    counts: Sequence[int],
    gradients: Sequence[Sequence[int]],
    first: Sequence[Sequence[bool]],
    hyper: Sequence[tuple[float, float, float, float]],
    *,
    nesterov: bool,
    maximize: bool,
    double: bool,
    threads: int,
) -> None:
    """Applies k gradients, in order, to the tensors of one parameter group: torch.optim.SGD.

    momentum_buffers: empty if momentum is 0 in every step.
    gradients: [k][tensor]; 0 where a tensor had no gradient in that step. They are not written.
    first: [k][tensor]; whether this gradient initialises the momentum buffer (there was none before).
    hyper: [k] of (lr, momentum, dampening, weight_decay).
    """

def capability() -> Capability:
    """The kernel set that runs. All sets give the same bits."""

def threads_max() -> int:
    """Processors this process may use; 1 in a build without OpenMP."""

def use(capability: Capability) -> None:
    """Switches the kernel set of this process, for tests. ValueError where the CPU lacks it."""
