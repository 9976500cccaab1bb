"""voxserve: a LiDAR scan in, a label per point out.

import voxserve

client = voxserve.Client("localhost:8500")
labels = client.segment("minkunet", points)  # points: float32 [N, 4], labels: uint8 [N]
"""

from voxserve import aio
from voxserve.client import Client
from voxserve.errors import (
    CancelledError,
    DeadlineExceededError,
    InferenceError,
    InvalidArgumentError,
    NotFoundError,
    ResourceExhaustedError,
    UnavailableError,
)
from voxserve.field_spec import Field
from voxserve.point_cloud import PointCloud
from voxserve.readers import read
from voxserve.results import (
    ClassInfo,
    FeatureInfo,
    ModelState,
    ModelVersion,
    PointCounts,
    Segmentation,
    Stage,
)

__version__ = "0.1.0"

__all__ = [
    "CancelledError",
    "ClassInfo",
    "Client",
    "DeadlineExceededError",
    "FeatureInfo",
    "Field",
    "InferenceError",
    "InvalidArgumentError",
    "ModelState",
    "ModelVersion",
    "NotFoundError",
    "PointCloud",
    "PointCounts",
    "ResourceExhaustedError",
    "Segmentation",
    "Stage",
    "UnavailableError",
    "aio",
    "read",
]
