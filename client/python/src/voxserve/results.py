"""What the server answers, as plain Python values."""

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
    """What became of the points: all but voxels and not_finite add up to the cloud's points."""

    used: int
    invalid: int  # NaN or infinite; they get the ignore label, as do all the next but voxels
    out_of_range: int
    dropped: int  # lost to the model's voxel limit
    voxels: int  # occupied voxels at the network's input
    unsampled: int = 0  # not in the sample that the network was to see
    not_finite: int = 0  # of those used: the network's logits are NaN or infinite; they get the ignore label


@dataclass(frozen=True)
class Stage:
    """Time that a stage took on the server."""

    name: str
    seconds: float


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What every answer tells, whatever its model finds in a cloud."""

    counts: PointCounts
    stages: tuple[Stage, ...]  # in the order in which they ran
    model: str
    version: int  # that answered
    device: str  # "cpu" or "cuda:N"
    request_id: str
    round_trip: float  # seconds from the call to the decoded answer, as seen here
    # Indices into the points, in the order of selection, where a sample was asked for.
    sampled_points: npt.NDArray[np.uint32] | None = None
    tensors: Mapping[str, Tensor] = field(default_factory=dict)  # those that were asked for, by name


@dataclass(frozen=True, kw_only=True)
class Tensors(Answer):
    """What a model answers beside labels and boxes: its tensors."""


@dataclass(frozen=True, kw_only=True)
class Segmentation(Answer):
    """A label per point, in the points' order."""

    labels: Labels  # [N]
    scores: npt.NDArray[np.float32] | None  # [N, num_classes] logits, where asked for
    ignore_label: int  # of points that were not labelled
    num_classes: int


@dataclass(frozen=True, kw_only=True)
class Detections(Answer):
    """Boxes in the cloud's coordinates, head after head of the network, each head's by score, the best first. All
    numbers are finite.
    """

    boxes: npt.NDArray[np.float32]  # [N, 7]: centre x, y, z, length, width, height in metres, yaw in radians about z
    velocities: npt.NDArray[np.float32]  # [N, 2]: metres a second along the cloud's x and y; 0 of a model without
    scores: npt.NDArray[np.float32]  # [N], 0 to 1
    class_ids: npt.NDArray[np.uint32]  # [N]
    names: tuple[str, ...]  # [N] of the classes; "" where the model's configuration names none

    def __len__(self) -> int:
        return len(self.boxes)

    def structured(self) -> npt.NDArray[np.void]:
        """[N] records of all but the names: class_id, score, x, y, z, length, width, height, yaw, velocity_x,
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
    """What became of a frame of a stream: an error, or what the model has of a segmentation, detections and tensors."""

    frame_id: int
    segmentation: Segmentation | None  # its round_trip counts from Stream.send
    error: InferenceError | None  # SupersededError where a newer frame took its place
    num_sweeps: int = 0  # that were run together, the newest included; 0 where none accumulate
    detections: Detections | None = None  # likewise
    tensors: Tensors | None = None  # of a model that has neither; else theirs has what was asked for


class ModelState(Enum):
    """Whether a version can be asked."""

    UNKNOWN = 0
    LOADING = 1
    READY = 2
    FAILED = 3


@dataclass(frozen=True)
class ClassInfo:
    """A class that a model tells apart."""

    id: int
    name: str
    color: tuple[int, int, int]  # red, green, blue


@dataclass(frozen=True)
class FeatureInfo:
    """What the network reads of a point: a field in its canonical unit."""

    name: str
    unit: str
    default: float | None  # where the cloud has no such field; None: the field is required


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
    # What it answers. Of a version that is not ready, nothing is known, and all are False.
    has_labels: bool = True  # Client.infer and segment may be asked
    has_scores: bool = False  # with scores=True
    has_boxes: bool = False  # Client.detect may be asked
    has_velocities: bool = False  # of the boxes
    tensors: tuple[TensorInfo, ...] = ()  # that outputs=[...] may name


@dataclass(frozen=True)
class TuneProgress:
    """How far a search for a plan has come."""

    stage: str  # what it does: "waiting for scans", "candidates", ...
    fraction: float  # of the whole search, 0 to 1


@dataclass(frozen=True)
class TunedBucket:
    """What a plan won in a range of input sizes: min_voxels <= voxels < max_voxels."""

    min_voxels: int
    max_voxels: int | None  # None: no upper end
    num_scans: int
    default_seconds: float  # from points to labels by the default plan, median over the scans
    tuned_seconds: float  # by the plan that was found


@dataclass(frozen=True)
class TunedPlan:
    """What a search for a plan found."""

    device: str  # that was searched on; the plan serves every device of that name
    num_scans: int
    buckets: tuple[TunedBucket, ...]  # ascending
    seconds: float  # that the search took
    path: str  # the plan's file on the server; "" where it could not be written
