"""Reads a detector's training configuration, of OpenPCDet (yaml), mmdetection3d and AWML (py, json) or
mit-han-lab/bevfusion (yaml), for the exporters.

Nothing of a file is run. A setting that the exporter cannot serve, or does not know, is refused by its name.
"""

from __future__ import annotations

from voxserve.export.detector_configs import files, mit_bevfusion, mmdetection3d, openpcdet
from voxserve.export.detector_configs.common import Config, Detector
from voxserve.export.detector_configs.settings import Report
from voxserve.export.model_folder import PointFeature
from voxserve.export.networks.tensors import ExportError

__all__ = ["Config", "Detector", "read"]


def read(path: str, features: tuple[PointFeature, ...] = ()) -> Detector:
    """Returns the detector that a configuration describes. features: the columns of its input, where the file's own
    names do not say enough; empty: as the data set has them.

    Raises ExportError with all settings that are not served, OSError if a file cannot be read, and ValueError if it is
    no configuration of a detector.
    """
    values, report = files.read(path), Report()
    if mit_bevfusion.is_bevfusion(values):
        made = mit_bevfusion.read(mit_bevfusion.with_defaults(path, values, files.read), report, features)
    elif openpcdet.is_openpcdet(values):
        made = openpcdet.read(values, report, features)
    elif mmdetection3d.is_mmdetection3d(values):
        made = mmdetection3d.read(values, report, features)
    else:
        raise ValueError(
            f"{path} is no configuration of a detector: it has neither MODEL and DATA_CONFIG, as OpenPCDet's, nor "
            "model = dict(type=...), as mmdetection3d's"
        )
    if made is None:
        raise ExportError([f"{path}: {problem}" for problem in dict.fromkeys(report.problems)])
    return made
