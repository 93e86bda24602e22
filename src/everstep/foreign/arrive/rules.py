"""What the caller says about names: `PATTERN=TEMPLATE` renames, `PATTERN` chooses. A rule without effect is an error.

Patterns match whole names, never a part: a prefix that happens to fit elsewhere must not move anything.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from everstep.errors import Misuse


@dataclass(frozen=True, slots=True)
class Rename:
    r"""`module\.(.*)=\1`, parsed."""

    option: str
    text: str
    pattern: re.Pattern[str]
    template: str

    def new(self, name: str) -> str | None:
        """What the rule makes of a name; None when it does not match as a whole."""
        match = self.pattern.fullmatch(name)
        if match is None:
            return None
        try:
            made = match.expand(self.template)
        except (re.error, IndexError) as wrong:
            raise Misuse(f"{self.option} {self.text!r}: its template cannot be filled in ({wrong}).") from wrong
        if not made or "\0" in made:
            raise Misuse(f"{self.option} {self.text!r}: makes {name!r} into nothing.")
        return made


def rename(option: str, text: str) -> Rename:
    """One rule; the last '=' divides it, so that a pattern may hold some."""
    pattern, mark, template = text.rpartition("=")
    if not mark or not pattern:
        raise Misuse(f"{option} {text!r}: is not PATTERN=TEMPLATE, such as 'module\\.(.*)=\\1'.")
    return Rename(option, text, compiled(option, pattern), template)


def compiled(option: str, pattern: str) -> re.Pattern[str]:
    try:
        return re.compile(pattern)
    except re.error as wrong:
        raise Misuse(f"{option} {pattern!r}: is no regular expression ({wrong}).") from wrong


def pair(option: str, text: str) -> tuple[str, str]:
    """`NAME=OTHER`, parsed."""
    left, mark, right = text.partition("=")
    if not mark or not left or not right:
        raise Misuse(f"{option} {text!r}: is not NAME=OTHER.")
    return left, right


def renamed(names: Iterable[str], rules: Sequence[Rename]) -> dict[str, str]:
    """The new name of every name. Rules apply in turn, each to what those before it made."""
    known = list(dict.fromkeys(names))
    found = {name: name for name in known}
    for rule in rules:
        used = False
        for name, current in found.items():
            if (new := rule.new(current)) is not None:
                used = True
                found[name] = new
        if not used:
            raise unused(rule.option, rule.text, found)
    _refuse_collisions(found)
    return found


def chosen(option: str, names: Iterable[str], patterns: Sequence[re.Pattern[str]]) -> set[str]:
    """The names that a pattern matches as a whole."""
    known, found = list(names), set()
    for pattern in patterns:
        matched = {name for name in known if pattern.fullmatch(name)}
        if not matched:
            raise unused(option, pattern.pattern, known)
        found |= matched
    return found


def unused(option: str, text: str, names: Iterable[str]) -> Misuse:
    """A rule that matches nothing is a mistake: what it was meant for would go without it."""
    some = ", ".join(repr(name) for name in list(names)[:3]) or "none at all"
    return Misuse(f"{option} {text!r}: no name matches as a whole. Names are such as {some}. Nothing was written.")


def _refuse_collisions(found: Mapping[str, str]) -> None:
    taken: dict[str, str] = {}
    for name, new in found.items():
        other = taken.setdefault(new, name)
        if other != name:
            raise Misuse(f"--rename makes {other!r} and {name!r} both into {new!r}. Nothing was written.")
