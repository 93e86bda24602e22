"""`everstep top`: the keepers of this user on this host, and how far each run is safe. `forget` ends one's waiting."""

import sys
import time
from typing import Any

import click

from everstep.cli.text import clean, echo, echo_json, echo_table, size
from everstep.errors import NotARun
from everstep.keeper import channel
from everstep.keeper.channel import Gone
from everstep.keeper.messages import Done, Forget, Look, Message, Report, error_of
from everstep.store import rendezvous
from everstep.store.disk import existing
from everstep.store.manifest import load_identity
from everstep.url import local_path

ANSWER_SECONDS = 5.0
REFRESH_SECONDS = 1.0
HEAD = ("run", "trainer", "state", "step", "memory", "disk", "queued", "not recorded", "memory only", "bases")


def top(url: str | None, *, once: bool, as_json: bool) -> None:
    """One picture, or on a terminal a new one every second until interrupted."""
    while True:
        found = reports(url)
        if as_json:
            echo_json([_plain(report) for report in found])
            return
        if not once and sys.stdout.isatty():
            click.clear()
        _show(found)
        if once or not sys.stdout.isatty():
            return
        time.sleep(REFRESH_SECONDS)


def forget(url: str) -> None:
    """Let a dead trainer's memory go; everything in it that the disk can hold is written first."""
    answer = _asked(_name(url), Forget())
    if answer is None:
        echo(f"{url}: no keeper serves this run on this host; there is nothing to forget.")
    elif isinstance(answer, Done):
        echo(f"{url}: forgotten." if answer.held else f"{url}: held nothing of a dead trainer.")
    else:
        raise error_of(answer)


def reports(url: str | None) -> list[Report]:
    """What the keepers say: of all runs, or of one."""
    names = rendezvous.runs() if url is None else [_name(url)]
    answers = [_asked(name, Look()) for name in names]
    return [answer for answer in answers if isinstance(answer, Report)]


def _name(url: str) -> str:
    path = local_path(url)
    disk = existing(path)
    try:
        return rendezvous.name_of(load_identity(disk, path).run, path)
    except FileNotFoundError as none:
        raise NotARun(f"{path}: there is no such directory.") from none
    finally:
        disk.release()


def _asked(name: str, message: Message) -> Message | None:
    line = channel.call(rendezvous.address(name))
    if line is None:
        return None
    try:
        line.send(message)
        got = line.receive(ANSWER_SECONDS)
        return None if got is None else got[0]
    except Gone:
        return None
    finally:
        line.close()


def _show(found: list[Report]) -> None:
    if not found:
        echo("no run has a keeper on this host.")
        return
    rows = []
    for report in found:
        health = report.health
        rows.append((
            clean(report.path), str(report.pid) if report.pid else "gone", health.state, str(health.committed),
            str(health.memory), str(health.acknowledged), size(health.queued_bytes), str(health.not_recorded),
            str(health.dropped), str(health.bases),
        ))  # fmt: skip
    echo_table(HEAD, rows, left="run trainer state")
    for report in found:
        if report.health.error:
            echo(f"{report.path}: {report.health.error}")
        for warning in report.health.warnings[-3:]:
            echo(f"{report.path}: {warning}")


def _plain(report: Report) -> dict[str, Any]:
    health = report.health
    return {
        "run": report.run, "path": report.path, "trainer": report.pid or None,
        **{name: getattr(health, name) for name in health.__struct_fields__},
    }  # fmt: skip
