"""Decides whether and when a stream whose connection ended looks for another server."""

from __future__ import annotations

import grpc

from voxserve import errors

# A frame that was under way while so many connections broke is not sent again: it may be what ends servers.
MAX_BREAKS = 3
_FIRST_DELAY = 0.1  # seconds before the second attempt in a row; the first comes at once
_MAX_DELAY = 1.0
_BROKEN_BEFORE = "CONNECTION_LOST"
_NEVER = "TLS_FAILED"


class Reopening:
    """Not thread-safe. Times are of time.monotonic()."""

    def __init__(self, seconds: float | None, now: float) -> None:
        """seconds: how long to look for a server; None: a stream ends with its connection."""
        self._seconds = seconds
        self._began = now  # the current call
        self._broken_since: float | None = None
        self._num_failures = 0  # calls in a row that brought nothing

    @property
    def is_wanted(self) -> bool:
        """Whether the stream may be opened again."""
        return self._seconds is not None

    def is_about(self, error: errors.InferenceError) -> bool:
        """Returns whether a stream that is not complete looks for another server, or has looked, after this error."""
        return self.is_wanted and error.code is grpc.StatusCode.UNAVAILABLE

    def begin(self, now: float) -> None:
        """Tells that a call begins."""
        self._began = now

    def hear(self) -> None:
        """Tells that the server has sent something."""
        self._broken_since = None
        self._num_failures = 0

    def delay(self, error: errors.InferenceError, now: float) -> float | None:
        """Returns the seconds to wait before the stream is opened again; None if its call's error is its end."""
        if self._seconds is None or not self.is_about(error) or error.reason == _NEVER:
            return None
        if self._broken_since is None or now - self._began > self._seconds:  # it was open for long, if silent
            self._broken_since = now
            self._num_failures = 0
        self._num_failures += 1
        delay = 0.0 if self._num_failures == 1 else min(_MAX_DELAY, _FIRST_DELAY * 2.0 ** (self._num_failures - 2))
        delay = max(delay, error.retry_after or 0.0)
        return None if now + delay - self._broken_since > self._seconds else delay


def may_have_ended_its_server(error: errors.InferenceError) -> bool:
    """Whether the frames that were under way are to be suspected."""
    return error.reason == _BROKEN_BEFORE
