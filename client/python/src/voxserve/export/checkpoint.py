"""Loads a state dict into a torch module, and reports the tensors that it ignored."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from voxserve.export.input_files import told
from voxserve.export.networks.tensors import ExportError

# Prefixes that training code puts before all names of a state dict, such as DataParallel, Lightning, mmengine and
# Pointcept's segmentors.
_PREFIXES = (
    "",
    "module.",
    "model.",
    "net.",
    "network.",
    "backbone.",
    "module.model.",
    "module.backbone.",
    "model.net.",
)
_COUNTER = ".num_batches_tracked"  # a counter of batch norms, which only training reads


def load(module: Any, state: Mapping[str, npt.NDArray[Any]]) -> list[str]:
    """Sets every parameter and buffer of a torch module from a state dict. Returns warnings, which name the tensors
    that were ignored or converted.

    Raises ExportError, with all tensors that are missing, have another shape or are not finite. It then does not change
    the module.
    """
    import torch

    wanted = module.state_dict()
    prefix = max(_PREFIXES, key=lambda p: sum(p + name in state for name in wanted))
    problems, doubles, loaded = [], [], {}
    for name, tensor in wanted.items():
        stored = state.get(prefix + name)
        if name.endswith(_COUNTER):
            continue
        if stored is None:
            problems.append(f"tensor '{prefix}{name}' {list(tensor.shape)} is missing")
        elif tuple(stored.shape) != tuple(tensor.shape):
            problems.append(f"tensor '{prefix}{name}' is {list(stored.shape)}, not {list(tensor.shape)}")
        else:
            values = torch.from_numpy(np.array(stored)).to(tensor.dtype)
            count = int((~torch.isfinite(values)).sum())
            if count:
                problems.append(f"tensor '{prefix}{name}' has {count} values that are not finite")
            if stored.dtype == np.float64 and tensor.dtype == torch.float32:
                doubles.append(name)
            loaded[name] = values
    if problems:
        raise ExportError(problems)
    module.load_state_dict(loaded, strict=False)
    unused = [name for name in state if name.removeprefix(prefix) not in wanted or not name.startswith(prefix)]
    counters = [name for name in unused if name.endswith(_COUNTER)]
    rest = [name for name in unused if name not in counters]
    warnings = [f"names lose their first part '{prefix}'"] if prefix else []
    for what, names in (
        ("float64, stored as float32", doubles),
        ("counters of training, left out", counters),
        ("used by no part of the module, left out", rest),
    ):
        if names:
            warnings.append(told(what, names))
    return warnings
