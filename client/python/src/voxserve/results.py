"""The server's answers as plain Python values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import numpy as np
import numpy.typing as npt

from voxserve.errors import InferenceError
from voxserve.tensors import Tensor, TensorInfo

Labels = npt.NDArray[np.uint8] | npt.NDArray[np.uint16]


@dataclass(frozen=True)
class PointCounts:
    """The numbers of points by what became of them. All except voxels and not_finite add up to the cloud's points."""

    used: int
    invalid: int  # NaN or infinite; they get the ignore label, as do out_of_range, dropped and unsampled
    out_of_range: int
    dropped: int  # lost to the model's voxel limit
    voxels: int  # occupied voxels at the network's input
    unsampled: int = 0  # outside the sample that the network sees
    not_finite: int = 0  # used points whose logits are NaN or infinite; they get the ignore label


@dataclass(frozen=True)
class Stage:
    """The time that a stage took on the server."""

    name: str
    seconds: float


@dataclass(frozen=True, kw_only=True)
class Answer:
    """The parts that every answer has, whatever outputs its model has."""

    counts: PointCounts
    stages: tuple[Stage, ...]  # in the order in which they ran
    model: str
    version: int  # the version that answered
    device: str  # "cpu" or "cuda:N"
    request_id: str
    round_trip: float  # seconds from the call to the decoded answer, measured by the client
    # If a sample was asked for: indices into the points, in the order of selection.
    sampled_points: npt.NDArray[np.uint32] | None = None
    tensors: Mapping[str, Tensor] = field(default_factory=dict)  # those asked for, by name


@dataclass(frozen=True, kw_only=True)
class Tensors(Answer):
    """The answer of a model without labels and boxes: its tensors."""


@dataclass(frozen=True, kw_only=True)
class Segmentation(Answer):
    """A label per point, in the points' order."""

    labels: Labels  # [N]
    scores: npt.NDArray[np.float32] | None  # [N, num_classes] logits, if asked for
    ignore_label: int  # the label of points without a class
    num_classes: int


@dataclass(frozen=True, kw_only=True)
class Detections(Answer):
    """Boxes in the cloud's coordinates, by head of the network, each head's by score, best first. All numbers are
    finite.
    """

    boxes: npt.NDArray[np.float32]  # [N, 7]: centre x, y, z, length, width, height in metres, yaw in radians about z
    velocities: npt.NDArray[np.float32]  # [N, 2]: metres per second along the cloud's x and y; 0 if the model has none
    scores: npt.NDArray[np.float32]  # [N], 0 to 1
    class_ids: npt.NDArray[np.uint32]  # [N]
    names: tuple[str, ...]  # [N] the classes' names; "" if the model's configuration does not name them

    def __len__(self) -> int:
        return len(self.boxes)

    def structured(self) -> npt.NDArray[np.void]:
        """Returns [N] records without the names: class_id, score, x, y, z, length, width, height, yaw, velocity_x,
        velocity_y.
        """
        records = np.empty(len(self), BOX_DTYPE)
        columns = np.concatenate([self.scores[:, None], self.boxes, self.velocities], axis=1)
        records["class_id"] = self.class_ids
        for i, name in enumerate(BOX_DTYPE.names[1:]):
            records[name] = columns[:, i]
        return records


_BOX_NUMBERS = ("score", "x", "y", "z", "length", "width", "height", "yaw", "velocity_x", "velocity_y")
BOX_DTYPE: Any = np.dtype([("class_id", "<u4"), *((name, "<f4") for name in _BOX_NUMBERS)])


@dataclass(frozen=True)
class FrameResult:
    """The result of a stream's frame: an error, or the model's segmentation, detections and tensors."""

    frame_id: int
    segmentation: Segmentation | None  # its round_trip counts from Stream.send
    error: InferenceError | None  # SupersededError if a newer frame replaced it
    num_sweeps: int = 0  # sweeps that were run together, the newest included; 0 if none accumulate
    detections: Detections | None = None  # its round_trip counts from Stream.send
    tensors: Tensors | None = None  # for a model without labels and boxes; else see their own tensors


class ModelState(Enum):
    """The state of a version; only a READY one serves."""

    UNKNOWN = 0
    LOADING = 1
    READY = 2
    FAILED = 3


@dataclass(frozen=True)
class ClassInfo:
    """A class of a model."""

    id: int
    name: str
    color: tuple[int, int, int]  # red, green, blue


@dataclass(frozen=True)
class FeatureInfo:
    """A feature that the network reads of a point: a field in its canonical unit."""

    name: str
    unit: str
    default: float | None  # for clouds without the field; None: the field is required


@dataclass(frozen=True)
class ModelVersion:
    """One version of a model in the server's repository."""

    name: str
    version: int
    state: ModelState
    problems: tuple[str, ...]  # of a failed version
    description: str
    classes: tuple[ClassInfo, ...]
    ignore_label: int
    features: tuple[FeatureInfo, ...]
    max_points: int
    voxel_size: tuple[float, ...]  # metres per axis
    num_parameters: int
    device: str
    digest: str  # of graph and weights
    # The outputs. All are False for a version that is not ready, since they are unknown.
    has_labels: bool = True  # Client.infer and segment can be used
    has_scores: bool = False  # scores=True can be used
    has_boxes: bool = False  # Client.detect can be used
    has_velocities: bool = False  # boxes have velocities
    tensors: tuple[TensorInfo, ...] = ()  # the tensors that outputs=[...] may name


@dataclass(frozen=True)
class TuneProgress:
    """The progress of a search for a plan."""

    stage: str  # "waiting for scans", "candidates", ...
    fraction: float  # of the whole search, 0 to 1


@dataclass(frozen=True)
class TunedBucket:
    """The times before and after a search, in a range of input sizes: min_voxels <= voxels < max_voxels."""

    min_voxels: int
    max_voxels: int | None  # None: no upper end
    num_scans: int
    default_seconds: float  # from points to labels with the default plan, median over the scans
    tuned_seconds: float  # the same with the plan that was found


@dataclass(frozen=True)
class TunedPlan:
    """The result of a search for a plan."""

    device: str  # where the search ran; the plan is used on every device of that name
    num_scans: int
    buckets: tuple[TunedBucket, ...]  # ascending
    seconds: float  # duration of the search
    path: str  # the plan's file on the server; "" if it could not be written
