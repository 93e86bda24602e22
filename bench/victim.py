"""A training that is killed from outside, on whatever device there is. Says what it does, one line at a time.

python -m bench.victim RUN STEPS LAYERS WIDTH BATCH [--source S] [--memory BYTES] [--digests] [--wait]

RUN "-" trains without everstep.
"""

import argparse
import os
import sys
import time

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")

import torch

import everstep
from bench.models import GPT, Shape
from everstep.capture.digests import digest
from everstep.types import combine

LENGTH = 256
WORDS = 8192


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("run")
    for name in ("steps", "layers", "width", "batch"):
        options.add_argument(name, type=int)
    options.add_argument("--source", default="gradient")
    options.add_argument("--memory", type=int, help="buffer_bytes_max")
    options.add_argument("--digests", action="store_true", help="say the state's digest after every step")
    options.add_argument("--wait", action="store_true", help="build the model, then wait for a line on stdin")
    chosen = options.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(5)
    torch.use_deterministic_algorithms(True)
    shape = Shape(chosen.layers, chosen.width, max(1, chosen.width // 64), chosen.batch, LENGTH, WORDS)
    model = GPT(shape).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    if chosen.wait and not sys.stdin.readline():
        return
    settings = everstep.Settings(source=chosen.source, buffer_bytes_max=chosen.memory)
    run = everstep.open(chosen.run, model=model, optimizer=optimizer, settings=settings) if chosen.run != "-" else None
    began = time.perf_counter()
    first = run.resume() if run is not None else 0
    if device == "cuda":
        torch.cuda.synchronize()
    spent = time.perf_counter() - began
    ledger = run.ledger if run is not None else None
    origin = "memory" if ledger is not None and any(i.origin.startswith("memory") for i in ledger) else "disk"
    weights = sum(parameter.numel() for parameter in model.parameters())
    brought = 12 * weights + (4 * weights * ledger.records if ledger is not None else 0)
    say("resumed", first, spent, origin, state(model, optimizer) if chosen.digests else "-", brought)
    for step in range(first, chosen.steps):
        data = torch.randint(0, WORDS, (chosen.batch, LENGTH + 1), device=device)
        plain = torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH)  # the others are not deterministic
        with torch.autocast(device, torch.bfloat16, enabled=device == "cuda"), plain:
            loss = model(data[:, :-1], data[:, 1:].contiguous())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if run is not None:
            run.commit()
        say("step", step + 1, state(model, optimizer) if chosen.digests and run is None else "-")
    if run is not None:
        run.close()


def state(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> str:
    """Everything that must come back bit for bit."""
    tensors = dict(model.named_parameters())
    tensors |= {f"{n}/{k}": v for n, p in model.named_parameters() for k, v in optimizer.state[p].items()}
    tensors |= {"rng": torch.get_rng_state()}
    if torch.cuda.is_available():
        tensors["cuda"] = torch.cuda.get_rng_state()
    found = digest([tensor.detach() for tensor in tensors.values()])
    return combine(zip(tensors, found, strict=True))


def say(*words: object) -> None:
    sys.stdout.write(" ".join(str(word) for word in words) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
