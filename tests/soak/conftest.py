"""Makes importable the modules that the soak shares with other tests."""

import pytest

import soak  # noqa: F401, soak.py adds the folders to sys.path


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "alone: needs a machine that does nothing else")
