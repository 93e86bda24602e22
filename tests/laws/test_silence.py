"""Nothing of ours opens a network connection or listens for one. Trainer and keeper have a private Unix socket."""

import ast

import pytest

from tests.laws.syntax import sources

SPEAKING = frozenset({"bind", "listen", "accept", "connect", "create_server", "create_connection", "socketpair"})


UNIX = "keeper/channel.py"
"""The one module with sockets, and all of them are of the kind that cannot leave the host."""


def spoken(text: str) -> list[str]:
    """Calls that open a socket, or that are made on one; not the channel's own functions."""
    calls = [node.func for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call)]
    found = [call for call in calls if isinstance(call, ast.Attribute)]
    ours = [call for call in found if isinstance(call.value, ast.Name) and call.value.id == "channel"]
    return [call.attr for call in found if call not in ours and (call.attr in SPEAKING or call.attr == "socket")]


def families(text: str) -> list[str]:
    """The first argument of every socket that is made."""
    calls = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call)]
    made = [call for call in calls if isinstance(call.func, ast.Attribute) and call.func.attr == "socket"]
    return [ast.unparse(call.args[0]) if call.args else "" for call in made]


@pytest.mark.parametrize(("path", "text"), list(sources()), ids=lambda value: str(value)[:40])
def test_no_module_speaks_to_a_network(path: str, text: str) -> None:
    assert path == UNIX or spoken(text) == []


def test_every_socket_is_a_unix_socket() -> None:
    found = [family for path, text in sources() if path == UNIX for family in families(text)]
    assert found
    assert set(found) == {"socket.AF_UNIX"}


@pytest.mark.parametrize("text", ["import socket\nsocket.socket()", "s.bind(('', 0))", "server.listen()"])
def test_the_law_can_be_broken(text: str) -> None:
    assert spoken(text)
