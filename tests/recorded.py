"""Lines that tests record, for a table at the end of the run. They go with a test's report, so that they also arrive
from the processes of pytest-xdist.
"""

from typing import Any

import pytest


def record(request: pytest.FixtureRequest, name: str, line: str) -> None:
    request.node.user_properties.append((name, line))


def recorded(terminalreporter: Any, name: str) -> list[str]:
    """Returns the lines of this name, by the order in which the tests ended."""
    reports = [report for reports in terminalreporter.stats.values() for report in reports]
    calls = sorted((report for report in reports if getattr(report, "when", "") == "call"), key=lambda call: call.stop)
    return [line for call in calls for key, line in call.user_properties if key == name]
