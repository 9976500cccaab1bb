"""Converts what users have instead of NumPy arrays, such as torch tensors."""

from __future__ import annotations

from typing import Any

import numpy as np


def array_of(values: Any) -> Any:
    """Returns values as a NumPy array, which may share their memory. values: anything that NumPy takes, or a torch
    tensor of any device, which may require a gradient. bfloat16, which NumPy lacks, becomes float32.
    """
    if hasattr(values, "detach") and hasattr(values, "cpu"):
        values = values.detach().cpu()
        values = (values.float() if str(values.dtype) == "torch.bfloat16" else values).numpy()
    return np.asarray(values)
