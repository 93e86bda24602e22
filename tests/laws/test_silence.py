"""Nothing of ours opens a connection or listens for one."""

import ast

import pytest

from tests.laws.syntax import sources

SPEAKING = frozenset({"bind", "listen", "accept", "connect", "create_server", "create_connection", "socketpair"})


def spoken(text: str) -> list[str]:
    """Calls that open a socket, or that are made on one."""
    calls = [node.func for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call)]
    found = [call.attr for call in calls if isinstance(call, ast.Attribute)]
    return [name for name in found if name in SPEAKING or name == "socket"]


@pytest.mark.parametrize(("path", "text"), list(sources()), ids=lambda value: str(value)[:40])
def test_no_module_speaks_to_a_network(path: str, text: str) -> None:
    assert spoken(text) == []


@pytest.mark.parametrize("text", ["import socket\nsocket.socket()", "s.bind(('', 0))", "server.listen()"])
def test_the_law_can_be_broken(text: str) -> None:
    assert spoken(text)
