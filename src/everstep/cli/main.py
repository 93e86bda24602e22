"""`everstep`: look at a run, prove it, restore from it, prune it.

The verbs and their options stand here; what they do is imported when they are called, so that `ls` starts at once.
Exit codes: 0 good, 1 `verify` found damage, 2 an error, reported in one message, 3 a failure of everstep itself.
"""

import os
import sys
from collections.abc import Callable
from typing import Any, TypeVar

import click

from everstep import __version__
from everstep.errors import EverstepError

F = TypeVar("F", bound=Callable[..., Any])

FORMATS = ("torch", "safetensors", "hf", "dcp", "deepspeed-universal")
EXIT_DAMAGE, EXIT_ERROR, EXIT_BUG, EXIT_INTERRUPTED = 1, 2, 3, 130


def _url(command: F) -> F:
    return click.argument("url", type=click.Path(path_type=str))(command)


def _json(command: F) -> F:
    return click.option("as_json", "--json", is_flag=True, help="Print JSON instead of text.")(command)


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="everstep", message="%(prog)s %(version)s")
@click.option("--debug", is_flag=True, help="Show the traceback when everstep itself fails.")
@click.pass_obj
def cli(options: dict[str, bool], *, debug: bool) -> None:
    """Every training step recoverable, exactly.

    A run is a directory; URL is its path, file://PATH, or PATH#EPOCH for an older branch.
    """
    options["debug"] = debug


@cli.command()
@_url
@_json
def ls(url: str, *, as_json: bool) -> None:
    """What a run holds: branches, bases, segments, restorable steps."""
    from everstep.cli import ls as verb

    verb.ls(url, as_json=as_json)


@cli.command()
@_url
@click.option("--step", type=int, help="The step to look at; the newest by default.")
@_json
def show(url: str, *, step: int | None, as_json: bool) -> None:
    """The state at a step, as the files describe it: tensors, hyper-parameters, context, and where each comes from."""
    from everstep.cli import show as verb

    verb.show(url, step, as_json=as_json)


@cli.command()
@_url
@click.option("first", "--from", type=int, help="First step; the oldest by default.")
@click.option("last", "--to", type=int, help="Last step; the newest by default.")
@_json
def log(url: str, *, first: int | None, last: int | None, as_json: bool) -> None:
    """One line per record."""
    from everstep.cli import log as verb

    verb.log(url, first, last, as_json=as_json)


@cli.command()
@_url
@click.option("--onto", required=True, metavar="LAYOUT", help="single, ddp:N, fsdp:N, or your own spec.py.")
@click.option("--step", type=int, help="The step to resume; the newest by default.")
@_json
def explain(url: str, *, onto: str, step: int | None, as_json: bool) -> None:
    """What resuming under another parallelism would read: who, from whom, how much, and what cannot be restored."""
    from everstep.cli import explain as verb

    if not verb.say(url, onto, step, as_json=as_json):
        click.get_current_context().exit(EXIT_DAMAGE)


@cli.command()
@_url
@click.option("--replay", is_flag=True, help="Also replay every record, by native rules and by torch's optimizers.")
@_json
def verify(url: str, *, replay: bool, as_json: bool) -> None:
    """Prove every byte of a run, or name what is damaged (exit code 1). Never writes.

    URL may also be a checkpoint of torch.save, DCP, Megatron, DeepSpeed or safetensors: its own checksums are proved.
    """
    from everstep.cli import foreign
    from everstep.cli import verify as verb

    good = (
        foreign.verify(url, as_json=as_json)
        if foreign.is_foreign(url) and not replay
        else verb.verify(url, replay=replay, as_json=as_json)
    )
    if not good:
        click.get_current_context().exit(EXIT_DAMAGE)


@cli.command()
@_url
@click.option("--step", type=int, help="The step to restore; the newest by default.")
@click.option("target", "--to", type=click.Path(path_type=str), required=True, help="The file to write.")
@click.option("form", "--format", type=click.Choice(["safetensors", "torch"]), default="safetensors", show_default=True)
@click.option("--force", is_flag=True, help="Replace the file if it exists.")
def restore(url: str, *, step: int | None, target: str, form: str, force: bool) -> None:
    """Write the state at a step into one file that other tools read."""
    from everstep.cli import restore as verb

    verb.restore(url, step, target, form, force=force)


@cli.command("import")
@click.argument("source", type=click.Path(path_type=str))
@_url
@click.option("--step", type=int, help="The number of steps done, where the source does not say or is wrong.")
@click.option("--optimizer", metavar="NAME", help="AdamW, SGD, ..: whose state it is; none leaves it behind.")
@click.option("renames", "--rename", multiple=True, metavar="PATTERN=TEMPLATE", help=r"Such as 'module\.(.*)=\1'.")
@click.option(
    "stacks", "--unstack", multiple=True, metavar="PATTERN=TEMPLATE",
    help="One tensor for each index of the first axis, which is # in the new name (Megatron's layers).",
)  # fmt: skip
@click.option("--buffers", multiple=True, metavar="PATTERN", help="Names that are buffers and not parameters.")
@click.option("ties", "--tie", multiple=True, metavar="NAME=FIRST", help="NAME is another name of parameter FIRST.")
@click.option(
    "--order",
    type=click.Path(path_type=str),
    help="A file of the optimizer's parameters: names, a blank line between groups.",
)
@click.option("--state", multiple=True, metavar="KEY=VALUE", help="A value of the source becomes state=KEY.")
@_json
def import_(source: str, url: str, *, as_json: bool, **said: Any) -> None:
    """Make a run of a checkpoint of torch.save, DCP, Megatron, DeepSpeed or safetensors, with one base at its step.

    Patterns match whole names and may be given several times. Nothing in SOURCE is executed.
    """
    from everstep.cli import port as verb

    verb.bring(source, url, as_json=as_json, **said)


@cli.command()
@_url
@click.argument("target", metavar="DEST", type=click.Path(path_type=str))
@click.option("form", "--format", type=click.Choice(FORMATS), required=True, help="What DEST is to be.")
@click.option("--step", type=int, help="The step to export; the newest by default.")
@click.option("--shard-bytes", type=int, default=5_000_000_000, show_default=True, help="Of hf: the size of a file.")
@click.option("--verify/--no-verify", default=True, show_default=True, help="Read it back and compare every tensor.")
@_json
def export(
    url: str, target: str, *, form: str, step: int | None, shard_bytes: int, verify: bool, as_json: bool
) -> None:
    """Write what a step holds for torch, safetensors, Hugging Face, DCP or DeepSpeed to load."""
    from everstep.cli import export as verb

    verb.export(url, target, form, step, shard_bytes=shard_bytes, verify=verify, as_json=as_json)


@cli.command()
@_url
@click.argument("a", type=int)
@click.argument("b", type=int)
@_json
def diff(url: str, a: int, b: int, *, as_json: bool) -> None:
    """How far each tensor moved from step A to step B, the largest move first."""
    from everstep.cli import diff as verb

    verb.diff(url, a, b, as_json=as_json)


@cli.command()
@_url
@click.option(
    "specs", "--keep", multiple=True, required=True, metavar="SPEC",
    help="last:N newest steps | bases:N newest bases and all after them | every:N also one base per N steps | "
    "branches also the older branches. May be given several times. Without last or bases: bases:2.",
)  # fmt: skip
@click.option("--dry-run", is_flag=True, help="Only say what would go.")
@_json
def prune(url: str, *, specs: tuple[str, ...], dry_run: bool, as_json: bool) -> None:
    """Remove old bases, records and branches. The newest restorable step always stays."""
    from everstep.cli import prune as verb

    verb.prune(url, specs, dry_run=dry_run, as_json=as_json)


@cli.command()
@click.argument("url", type=click.Path(path_type=str), required=False)
@_json
def doctor(url: str | None, *, as_json: bool) -> None:
    """What this machine, this disk and, if given, this run are fit for."""
    from everstep.cli import doctor as verb

    verb.doctor(url, as_json=as_json)


@cli.command()
@click.argument("url", type=click.Path(path_type=str), required=False)
@click.option("--once", is_flag=True, help="One picture, also on a terminal.")
@_json
def top(url: str | None, *, once: bool, as_json: bool) -> None:
    """How far the runs that train on this host are safe: in memory, on disk."""
    from everstep.cli import top as verb

    verb.top(url, once=once, as_json=as_json)


@cli.command()
@_url
def forget(url: str) -> None:
    """Let go of the memory that a dead trainer left on this host, instead of waiting for the next one."""
    from everstep.cli import top as verb

    verb.forget(url)


def main(arguments: list[str] | None = None) -> None:
    """Run and exit. Whatever goes wrong is one message; a traceback only with --debug."""
    options = {"debug": False}
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")  # a name the terminal cannot show is no reason to fail
    try:
        code = cli.main(arguments, prog_name="everstep", standalone_mode=False, obj=options)
        sys.stdout.flush()
    except click.ClickException as usage:
        usage.show()
        code = usage.exit_code
    except (click.Abort, KeyboardInterrupt):
        code = _say("interrupted", EXIT_INTERRUPTED)
    except BrokenPipeError:  # `everstep log | head`: the reader has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 0
    except (EverstepError, OSError) as failed:
        if options["debug"]:
            raise
        code = _say(str(failed), EXIT_ERROR)
    except Exception as bug:  # the outermost loop
        if options["debug"]:
            raise
        code = _say(f"{type(bug).__name__}: {bug} (a fault in everstep; --debug shows where)", EXIT_BUG)
    sys.exit(code if isinstance(code, int) else 0)


def _say(message: str, code: int) -> int:
    from everstep.cli.text import clean

    click.echo(f"everstep: {clean(message, keep=chr(10))}", err=True)
    return code


if __name__ == "__main__":
    main()
