"""Warns of intensities that are in another unit than the model reads."""

from __future__ import annotations

import sys
import threading

from voxserve import intensity
from voxserve.point_cloud import PointCloud
from voxserve.results import ModelVersion


class IntensityWarning:
    """Warns on stderr, once per command. Thread-safe.

    program: the command's name. option: the one with which its user scales a field, such as feature_warning.BY_SCALE.
    """

    def __init__(self, program: str, model: ModelVersion, option: str) -> None:
        self._program, self._model = program, model
        self._advice = f"scale them with {option.format(name='intensity', factor=0.00392)} if they are 0 to 255"
        self._has_warned = threading.Event()

    def look_at(self, name: str, cloud: PointCloud) -> None:
        """Looks at a cloud as it is sent. name: what the cloud is called in the warning."""
        if self._has_warned.is_set():
            return
        problem = intensity.problem(cloud, self._model.features)
        if problem:
            self._has_warned.set()
            print(
                f"{self._program}: warning: intensities of {name} {problem}, but {self._model.name} reads 0..1; "
                f"{self._advice}",
                file=sys.stderr,
            )
