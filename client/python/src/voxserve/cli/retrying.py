"""Repeats calls that fail with errors that pass."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import TypeVar

import grpc

from voxserve import errors

_PASSING = {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.DEADLINE_EXCEEDED}
_LASTING = {
    "MODEL_FAILED",
    "MESSAGE_TOO_LARGE",
    "RESPONSE_TOO_LARGE",
    "OUT_OF_MEMORY",
}  # reasons for which a retry does not help
_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 10.0  # seconds
_Result = TypeVar("_Result")


def patiently(ask: Callable[[], _Result], seconds: float) -> _Result:
    """Returns what `ask` returns. Calls `ask` again while it raises a temporary error (_PASSING), for up to `seconds`,
    then raises the error. The pauses between the calls grow, and are random so that many clients do not retry at the
    same time. If the server asks for a longer pause (retry_after), that pause is used.
    """
    end = time.monotonic() + seconds
    pause = _FIRST_PAUSE
    while True:
        try:
            return ask()
        except errors.InferenceError as error:
            wait = max(error.retry_after or 0.0, pause * random.uniform(0.5, 1.0))
            if error.code not in _PASSING or error.reason in _LASTING or time.monotonic() + wait > end:
                raise
            time.sleep(wait)
            pause = min(2 * pause, _LONGEST_PAUSE)
