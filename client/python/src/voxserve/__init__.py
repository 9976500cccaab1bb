"""voxserve: sends a LiDAR scan to a server, and gets a label per point, boxes or tensors.

import voxserve

client = voxserve.Client("localhost:8500")
labels = client.segment("minkunet", points)  # points: float32 [N, 4], labels: uint8 [N]
found = client.detect("centerpoint", points)  # found.boxes: float32 [M, 7], found.scores, found.names

result = voxserve.load("deploy/models/minkunet").infer(points)  # the same in this process, without a server
"""

from importlib import metadata

from voxserve import aio
from voxserve.client import Client
from voxserve.compacting import Compacted, CompactWarning, compact
from voxserve.engine import Engine
from voxserve.errors import (
    AbortedError,
    CancelledError,
    DeadlineExceededError,
    FailedPreconditionError,
    InferenceError,
    InvalidArgumentError,
    NotFoundError,
    PermissionDeniedError,
    ResourceExhaustedError,
    SupersededError,
    UnauthenticatedError,
    UnavailableError,
)
from voxserve.farthest_points import FarthestPoints
from voxserve.feature_warning import FeatureWarning, NotFiniteWarning, OutOfRangeWarning, UnitWarning
from voxserve.field_spec import Field
from voxserve.loaded_model import LoadedModel, load
from voxserve.point_cloud import PointCloud
from voxserve.pose import Pose
from voxserve.readers import read
from voxserve.results import (
    ClassInfo,
    Detections,
    FeatureInfo,
    FrameResult,
    ModelState,
    ModelVersion,
    PointCounts,
    Reach,
    Segmentation,
    Stage,
    Tensors,
    TunedBucket,
    TunedPlan,
    TuneProgress,
    VoxelOverflow,
)
from voxserve.stream import Stream
from voxserve.stream_state import Sweeps
from voxserve.tensors import Tensor, TensorInfo, TensorRows
from voxserve.verify.record import record
from voxserve.voxels import Voxels

UNKNOWN_VERSION = "0+unknown"
try:
    __version__ = metadata.version("voxserve")
except metadata.PackageNotFoundError:  # the package is used from its sources, without an installation
    __version__ = UNKNOWN_VERSION

__all__ = [
    "AbortedError",
    "CancelledError",
    "ClassInfo",
    "Client",
    "CompactWarning",
    "Compacted",
    "DeadlineExceededError",
    "Detections",
    "Engine",
    "FailedPreconditionError",
    "FarthestPoints",
    "FeatureInfo",
    "FeatureWarning",
    "Field",
    "FrameResult",
    "InferenceError",
    "InvalidArgumentError",
    "LoadedModel",
    "ModelState",
    "ModelVersion",
    "NotFiniteWarning",
    "NotFoundError",
    "OutOfRangeWarning",
    "PermissionDeniedError",
    "PointCloud",
    "PointCounts",
    "Pose",
    "Reach",
    "ResourceExhaustedError",
    "Segmentation",
    "Stage",
    "Stream",
    "SupersededError",
    "Sweeps",
    "Tensor",
    "TensorInfo",
    "TensorRows",
    "Tensors",
    "TuneProgress",
    "TunedBucket",
    "TunedPlan",
    "UnauthenticatedError",
    "UnavailableError",
    "UnitWarning",
    "VoxelOverflow",
    "Voxels",
    "aio",
    "compact",
    "load",
    "read",
    "record",
]
