"""Decides whether and when a stream whose connection ended looks for another server."""

from __future__ import annotations

import grpc

from voxserve import errors

# A frame that was unanswered when this many connections broke is not sent again, since the frame itself may make
# servers crash.
MAX_BREAKS = 3
_FIRST_DELAY = 0.1  # seconds before the second attempt in a row; there is no delay before the first attempt
_MAX_DELAY = 1.0
_BROKEN_BEFORE = "CONNECTION_LOST"
_NEVER = "TLS_FAILED"


class Reopening:
    """Decides when a stream's next RPC begins, from the errors of its earlier ones. StreamState owns it. Not
    thread-safe. Times are those of time.monotonic().
    """

    def __init__(self, seconds: float | None, now: float) -> None:
        """seconds: for how long to look for a server; None: the stream ends with its connection."""
        self._seconds = seconds
        self._began = now  # when the current RPC began
        self._broken_since: float | None = None
        self._num_failures = 0  # RPCs in a row that ended without a result

    @property
    def is_wanted(self) -> bool:
        """Whether the stream may be opened again."""
        return self._seconds is not None

    def is_about(self, error: errors.InferenceError) -> bool:
        """Returns whether the error is one after which the stream looks for another server (UNAVAILABLE)."""
        return self.is_wanted and error.code is grpc.StatusCode.UNAVAILABLE

    def begin(self, now: float) -> None:
        """Tells that an RPC begins."""
        self._began = now

    def hear(self) -> None:
        """Tells that the server has sent a result."""
        self._broken_since = None
        self._num_failures = 0

    def delay(self, error: errors.InferenceError, now: float) -> float | None:
        """Returns the seconds to wait before the next RPC, after an RPC ended with `error`. Returns None if the stream
        ends with this error.
        """
        if self._seconds is None or not self.is_about(error) or error.reason == _NEVER:
            return None
        # An RPC that was open for long counts as working, even if the server sent no result.
        if self._broken_since is None or now - self._began > self._seconds:
            self._broken_since = now
            self._num_failures = 0
        self._num_failures += 1
        delay = 0.0 if self._num_failures == 1 else min(_MAX_DELAY, _FIRST_DELAY * 2.0 ** (self._num_failures - 2))
        delay = max(delay, error.retry_after or 0.0)
        return None if now + delay - self._broken_since > self._seconds else delay


def may_have_ended_its_server(error: errors.InferenceError) -> bool:
    """Returns whether a frame that was under way may have made the server crash: the connection broke."""
    return error.reason == _BROKEN_BEFORE
