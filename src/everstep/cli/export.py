"""`everstep export`: what a step holds, in a format that another system loads."""

from everstep.cli import text
from everstep.cli.held import held
from everstep.cli.progress import waiting
from everstep.foreign.depart.depart import depart, refuse


def export(
    url: str, target: str, form: str, step: int | None, *, shard_bytes: int, verify: bool, as_json: bool
) -> None:
    refuse(target, form)  # before the work, not after it
    with waiting("exporting"):
        state = held(url, step)
        done = depart(state, target, form, shard_bytes=shard_bytes, verify=verify)
    said = {
        "path": done.path,
        "format": form,
        "step": state.step,
        "tensors": done.tensors,
        "bytes": done.nbytes,
        "read_back": verify,
        "notes": list(done.notes),
    }
    if as_json:
        text.echo_json(said)
        return
    proof = "every one read back and compared" if verify else "not read back, as asked"
    counted = text.count(done.tensors, "tensor")
    text.echo(f"{target}: step {state.step} as {form}, {counted}, {text.size(done.nbytes)}, {proof}")
    for note in done.notes:
        text.echo(f"note: {note}")
