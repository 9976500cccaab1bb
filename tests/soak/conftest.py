"""Lets the tests find what the soak shares with other tests."""

import soak  # noqa: F401, it names the folders
