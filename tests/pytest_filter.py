"""A pytest plugin: --name-regex REGEX keeps the tests whose name, or file::name, has a match, as run_programs.py --filter does.

PYTHONPATH=tests python -m pytest -p pytest_filter --name-regex 'label|stream'
"""

import re

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--name-regex", metavar="REGEX", help="only tests whose name, or file::name, has a match")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    text = config.getoption("--name-regex")
    if not text:
        return
    try:
        pattern = re.compile(text)
    except re.error as error:
        raise pytest.UsageError(f"--name-regex '{text}': {error}") from None
    kept = [item for item in items if pattern.search(item.name) or pattern.search(item.nodeid)]
    config.hook.pytest_deselected(items=[item for item in items if item not in kept])
    items[:] = kept
