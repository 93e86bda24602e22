"""Safeties taken out one at a time: the tester must miss each. Every bug names the scenario that catches it."""

from tests.crash import bugs_reading, bugs_writing
from tests.crash.mutation import BUGS

__all__ = ["BUGS", "bugs_reading", "bugs_writing"]
