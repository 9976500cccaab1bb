"""Helpers of the tests with tritonclient. A test that imports this module is skipped if tritonclient is missing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

triton = pytest.importorskip(
    "tritonclient.grpc",
    reason="tritonclient is not installed; deploy/install.sh python installs it where PyPI has it for this Python",
)
Refusal = triton.InferenceServerException
TIMEOUT = 60


def input_of(points: np.ndarray, datatype: str = "FP32") -> Any:
    made = triton.InferInput("points", list(points.shape), datatype)
    made.set_data_from_numpy(points)
    return made


def refusal_of(call: Callable[[], object]) -> tuple[str, str]:
    """Returns the code and the text of the error that the call raises."""
    with pytest.raises(Refusal) as caught:
        call()
    return caught.value.status().removeprefix("StatusCode."), caught.value.message()


def bearer(token: str) -> dict[str, str]:
    """Returns the headers that carry a token."""
    return {"authorization": f"Bearer {token}"}
