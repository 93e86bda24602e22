from tests.hostile.tiny import runs  # noqa: F401 a fixture
