"""Defines voxserve.record, which writes the results of a user's own module to a file."""

from __future__ import annotations

import warnings
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from voxserve.arrays import array_of
from voxserve.verify import machine
from voxserve.verify.reference import Reference, Rows, part_name
from voxserve.verify.sparse_tensors import coordinates_of, features_of, kind_of, named


def record(module: Any, inputs: Any, path: str | Path = "reference.npz", *, intermediates: bool = True) -> Reference:
    """Runs module(inputs), and writes the inputs and results to a file for `python -m voxserve.verify`. Returns the
    content of the file.

    module: a torch.nn.Module in evaluation mode, with the library that it was trained with, on any device.
    inputs: the module's input; a tuple stands for several arguments. They contain one sparse tensor, or tensors from
        which the module makes one.
    path: the .npz file to write.
    intermediates: also writes the results of the module's parts, so that voxserve.verify can name the first part whose
        result deviates.

    Warns of what it changes on this machine: one thread for spconv on a CPU, and the CPU in place of a GPU.

    ValueError if the module is in training mode, has no sparse tensor as its input, returns no tensor, or needs a bias
    that spconv cannot add on a CPU.
    """
    import torch

    if module.training:
        raise ValueError("the module is in training mode: call module.eval() before it is recorded")
    recorder = _Recorder()
    for value in inputs if isinstance(inputs, tuple) else (inputs,):
        recorder.see(value)
    hooks = [part.register_forward_pre_hook(recorder.before) for part in module.modules()]
    hooks += [part.register_forward_hook(recorder.after(name)) for name, part in module.named_modules() if name]
    try:
        with torch.no_grad(), machine.prepared(module) as texts:
            result = module(*inputs) if isinstance(inputs, tuple) else module(inputs)
    finally:
        for hook in hooks:
            hook.remove()
    for text in texts:
        warnings.warn(text, stacklevel=2)
    if recorder.input is None:
        raise ValueError("the inputs have no sparse tensor, and the module's parts are given none")
    recorder.input = _given(inputs, recorder.input)
    outputs = {name: rows for name, value in named(result) if (rows := recorder.result_rows(value)) is not None}
    if not outputs:
        raise ValueError("the module returns no tensor")
    reference = Reference(recorder.input, outputs, recorder.modules if intermediates else {})
    reference.write(path)
    return reference


class _Recorder:
    """Collects the results of a run with their sites. The result of a layer that takes only features (a tensor, not a
    sparse tensor) has the sites of its input, if it has as many rows.
    """

    def __init__(self) -> None:
        self.input: Rows | None = None
        self.modules: dict[str, Rows] = {}
        self._coordinates: dict[int, Any] = {}  # id() of a tensor of features -> its coordinates
        # These tensors, and their coordinates. They stay alive, so that no other object gets the same id().
        self._known: list[tuple[Any, Any]] = []
        self._calls: dict[str, int] = {}  # part of the module -> how often it has run

    def see(self, value: Any) -> None:
        """Remembers the sites of a value that is a sparse tensor. The first sparse tensor is the recorded input."""
        if not kind_of(value):
            return
        features, coordinates = features_of(value), coordinates_of(value)
        self._know(features, coordinates)
        if self.input is None:
            self.input = Rows(_values(features), coordinates)

    def _know(self, features: Any, coordinates: Any) -> None:
        self._coordinates[id(features)] = coordinates
        self._known.append((features, coordinates))

    def before(self, _module: Any, args: Any) -> None:
        for value in args:
            self.see(value)

    def after(self, name: str) -> Any:
        def hook(_module: Any, args: Any, result: Any) -> None:
            self._calls[name] = self._calls.get(name, 0) + 1
            features = features_of(result)
            known = self._coordinates.get(id(args[0])) if args else None
            if known is not None and not kind_of(result) and getattr(features, "shape", (0,))[:1] == (len(known),):
                self._know(features, known)
            path = name if self._calls[name] == 1 else f"{name}#{self._calls[name]}"
            for key, value in named(result):
                rows = self.rows(value)
                if rows is not None:
                    self.modules[part_name(path, key)] = rows

        return hook

    def rows(self, value: Any) -> Rows | None:
        """Returns a copy of a tensor's values, with its sites if they are known; None if the value is no tensor."""
        self.see(value)
        features = features_of(value)
        if not hasattr(features, "detach"):
            return None
        return Rows(_values(features), self._coordinates.get(id(features)))

    def result_rows(self, value: Any) -> Rows | None:
        """Returns the rows of a result. A tensor whose rows are copies of those of known sites is recorded with the
        rows of all these sites: for example the voxels' scores for each point, `scores[inverse]`, or the features of
        one sample, as MinkowskiEngine's decomposed_features are.
        """
        rows = self.rows(value)
        if rows is None or rows.coordinates is not None or rows.values.ndim != 2 or not len(rows.values):
            return rows
        known = (Rows(_values(features), coordinates) for features, coordinates in reversed(self._known))
        # A part's result without known sites counts as one on the input's, as for voxserve.verify.
        of_input = (part for part in reversed(self.modules.values()) if len(part.values) == self._num_voxels)
        return next((source for source in chain(known, of_input) if _has_rows(source.values, rows.values)), rows)

    @property
    def _num_voxels(self) -> int:
        return 0 if self.input is None else len(self.input.values)


def _given(inputs: Any, first: Rows) -> Rows:
    """Returns the rows that the module is given. A module may change them before it makes its first sparse tensor, as
    by coordinates that it joins to them; of one tensor of features, in their order, they are known. first: the rows of
    the first sparse tensor.
    """
    values = list(inputs.values()) if isinstance(inputs, dict) else []
    tables = [_values(v) for v in values if getattr(v, "ndim", 0) == 2 and v.is_floating_point()]
    if len(tables) != 1 or len(tables[0]) != len(first.values) or _has_rows(tables[0], first.values):
        return first
    return Rows(tables[0], first.coordinates)


def _has_rows(source: Any, rows: Any) -> bool:
    """Returns whether each row is one of the rows of `source`."""
    if source.ndim != 2 or source.shape[1] != rows.shape[1] or source.dtype != rows.dtype:
        return False
    if not (source == rows[0]).all(axis=1).any():  # soon said of most
        return False
    return {row.tobytes() for row in rows} <= {row.tobytes() for row in source}


def _values(tensor: Any) -> Any:
    return np.array(array_of(tensor.float() if tensor.is_floating_point() else tensor))
