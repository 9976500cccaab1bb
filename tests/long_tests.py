"""LONG marks a test that takes minutes and has a short form beside it. It runs only where VOXSERVE_LONG is set, as
tests/release.sh does.
"""

import os

import pytest

LONG = pytest.mark.skipif(not os.environ.get("VOXSERVE_LONG"), reason="long: tests/release.sh")
