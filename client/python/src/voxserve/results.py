"""The server's answers as plain Python values."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from voxserve.errors import InferenceError
from voxserve.feature_warning import FeatureWarning
from voxserve.inputs import PointsLike
from voxserve.known_classes import ClassLookup
from voxserve.show import texts
from voxserve.source import Source
from voxserve.tensors import Tensor, TensorInfo

if TYPE_CHECKING:
    from voxserve.show.picture import Picture

Labels = npt.NDArray[np.uint8] | npt.NDArray[np.uint16]


@dataclass(frozen=True)
class PointCounts:
    """Counts of what happened to the cloud's points. used, invalid, out_of_range, dropped and unsampled add up to the
    number of points (in a stream with sweeps: to the points of all merged sweeps).
    """

    used: int  # points that the network saw
    invalid: int  # points with a NaN or infinite coordinate or feature; they get the ignore label
    out_of_range: int  # points outside the range that the model accepts; they get the ignore label
    dropped: int  # points beyond the model's voxel limit; they get the ignore label
    voxels: int  # occupied voxels at the network's input; not a count of points
    unsampled: int = 0  # points outside the sample that the network was limited to; they get the ignore label
    not_finite: int = 0  # those of `used` whose logits are NaN or infinite; they get the ignore label
    boxes_not_finite: int = 0  # candidates of boxes with a NaN or infinite number, which are left out; not of points


@dataclass(frozen=True)
class Stage:
    """The time that one stage of a request, such as voxelize, took on the server."""

    name: str
    seconds: float


@dataclass(frozen=True)
class ClassInfo:
    """A class of a model."""

    id: int
    name: str
    color: tuple[int, int, int]  # red, green, blue


@dataclass(frozen=True, kw_only=True)
class Answer:
    """The fields and methods that Segmentation, Detections and Tensors have in common.

    Pictures and tables show the request's points while the caller still has them, unchanged; otherwise pass them again.
    """

    counts: PointCounts
    stages: tuple[Stage, ...]  # in the order in which they ran
    model: str
    version: int  # the version that answered
    device: str  # "cpu" or "cuda:N"
    request_id: str
    round_trip: float  # seconds from the call to the decoded answer, measured by the client
    # [sample.num_points] indices into the points, in the order of selection; None if the request had no sample.
    sampled_points: npt.NDArray[np.uint32] | None = None
    tensors: Mapping[str, Tensor] = field(default_factory=dict)  # the requested tensors, by name
    warnings: tuple[FeatureWarning, ...] = ()  # features whose values are not those that the model was trained on
    class_lookup: ClassLookup = field(default_factory=ClassLookup, repr=False, compare=False)  # asks for `classes`
    source: Source = field(
        default_factory=Source, repr=False, compare=False
    )  # a weak reference to the request's points

    @property
    def classes(self) -> tuple[ClassInfo, ...]:
        """The model's classes; empty if the model has none, or if the server does not tell them. They are asked for
        when they, or names that need them, are first read, which takes a call of at most 2 s. A client that is closed
        has asked for those that answers in memory lacked. The text of an answer (repr) and pickling do not ask.
        """
        return self.class_lookup.read()

    @property
    def class_names(self) -> dict[int, str]:
        """The names of the model's classes by their ids."""
        return {info.id: info.name for info in self.classes}

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the answer to a file, in the format of its extension, which is that of the commands' --save. An older
        file is replaced when the new one is complete.

        - labels: .npy (uint8 or uint16 [N]), .label (SemanticKITTI)
        - boxes: .json, .csv, .npy (structured; of an answer with labels too, .npy has the labels)
        - tensors: .npz
        - a picture from above of labels or boxes: .png

        ValueError for another extension, OSError if the file cannot be written.
        """
        from voxserve.show import saving

        saving.save(self, path)


@dataclass(frozen=True, kw_only=True)
class Tensors(Answer):
    """The answer of Client.tensors: Answer.tensors has the values. In a stream: the answer of a model that has neither
    labels nor boxes.
    """

    def __repr__(self) -> str:
        return texts.of_answer(self)


@dataclass(frozen=True, kw_only=True)
class DrawnAnswer(Answer):
    """An answer that can be drawn into the cloud: a Segmentation or Detections, which `self` is."""

    def picture(self: Any, points: PointsLike | None = None, size: int = 400) -> Picture:
        """Returns a picture from above, which notebooks show. points: the request's points, if the caller has not kept
        them. size: the pixels of its longer side. ValueError without points, or if their number is another.
        """
        from voxserve.show import drawing

        return drawing.picture_of(self, points, size)

    def plot(self: Any, points: PointsLike | None = None, ax: Any = None) -> Any:
        """Draws the picture with axes and a legend, and returns matplotlib's Axes. points: as in picture(). ax: the
        Axes to draw into; None: those of a new figure. ImportError without matplotlib.
        """
        from voxserve.show import drawing

        return drawing.plot(self, points, ax)

    def _repr_html_(self: Any) -> str:
        from voxserve.show import drawing

        return drawing.html_of(self)


@dataclass(frozen=True, kw_only=True)
class Segmentation(DrawnAnswer):
    """One label per point, in the order of the points."""

    labels: Labels  # [N]
    # [N, num_classes] logits; None unless the request set scores=True. Rows of points without a label are 0.
    scores: npt.NDArray[np.float32] | None
    ignore_label: int  # the label of points that have no class (PointCounts says why)
    num_classes: int
    detections: Detections | None = None  # the boxes of the same request, from a model that answers both

    def count_by_class(self) -> dict[str, int]:
        """Returns the numbers of points by the name of their class, most points first. Points without a class are left
        out. A class without a name is called "class N".
        """
        return self._count_by(self.classes)

    def _count_by(self, classes: tuple[ClassInfo, ...]) -> dict[str, int]:
        names = {info.id: info.name for info in classes}
        ids, numbers = np.unique(self.labels, return_counts=True)
        order = sorted(zip(numbers.tolist(), ids.tolist(), strict=True), key=lambda pair: (-pair[0], pair[1]))
        counts: dict[str, int] = {}
        for number, label in order:
            if label != self.ignore_label:  # two classes may have one name
                name = names.get(label, f"class {label}")
                counts[name] = counts.get(name, 0) + number
        return counts

    def to_pandas(self, points: PointsLike | None = None) -> Any:
        """Returns a pandas.DataFrame with a row per point: the columns of the points (values as the network gets
        them), label, and class_name (categorical; none for points without a class). points: as in picture().
        ImportError without pandas.
        """
        from voxserve.show import tables

        return tables.of_segmentation(self, points)

    def __repr__(self) -> str:
        return texts.of_segmentation(self, self._count_by(self.class_lookup.known()))  # nobody waits for a text


@dataclass(frozen=True, kw_only=True)
class Detections(DrawnAnswer):
    """N boxes in the cloud's coordinates. They are grouped by the network's detection heads; within a head, the boxes
    are in descending order of their scores. All numbers are finite.
    """

    # [N, 7]: x, y, z of the centre, length, width and height, all in metres, and the yaw in radians: the angle about z
    # from the cloud's x axis to the box's length.
    boxes: npt.NDArray[np.float32]
    velocities: npt.NDArray[np.float32]  # [N, 2]: metres per second along the cloud's x and y; 0 if the model has none
    scores: npt.NDArray[np.float32]  # [N], 0 to 1
    class_ids: npt.NDArray[np.uint32]  # [N]
    names: tuple[str, ...]  # [N] the name of each box's class; "" if the model's configuration does not name it
    # [N] from a model that decodes boxes from queries: the number of each box's query, 0 for the cloud's best peak, or
    # -1. It is the row of the box in the model's tensors of queries. None if no box comes from a query.
    queries: npt.NDArray[np.int32] | None = None

    def __len__(self) -> int:
        return len(self.boxes)

    def count_by_class(self) -> dict[str, int]:
        """Returns the numbers of boxes by the name of their class, most boxes first. A class without a name is called
        "class N".
        """
        names = [name or f"class {class_id}" for name, class_id in zip(self.names, self.class_ids, strict=True)]
        counts = {name: names.count(name) for name in dict.fromkeys(names)}
        return dict(sorted(counts.items(), key=lambda pair: -pair[1]))

    def to_pandas(self) -> Any:
        """Returns a pandas.DataFrame with a row per box: class_id, class_name and the numbers of structured().
        ImportError without pandas.
        """
        from voxserve.show import tables

        return tables.of_detections(self)

    def __repr__(self) -> str:
        return texts.of_detections(self)

    def structured(self) -> npt.NDArray[np.void]:
        """Returns the boxes as a structured array [N] of BOX_DTYPE: class_id, score, x, y, z, length, width, height,
        yaw, velocity_x, velocity_y, and if there are queries, query (int32). It does not hold the names.
        """
        dtype = BOX_DTYPE if self.queries is None else np.dtype([*BOX_DTYPE.descr, ("query", "<i4")])
        records = np.empty(len(self), dtype)
        columns = np.concatenate([self.scores[:, None], self.boxes, self.velocities], axis=1)
        records["class_id"] = self.class_ids
        for i, name in enumerate(BOX_DTYPE.names[1:]):
            records[name] = columns[:, i]
        if self.queries is not None:
            records["query"] = self.queries
        return records


_BOX_NUMBERS = ("score", "x", "y", "z", "length", "width", "height", "yaw", "velocity_x", "velocity_y")
BOX_DTYPE: Any = np.dtype([("class_id", "<u4"), *((name, "<f4") for name in _BOX_NUMBERS)])


@dataclass(frozen=True)
class FrameResult:
    """The result of one frame of a stream: either `error`, or the model's outputs (the others are None)."""

    frame_id: int
    segmentation: Segmentation | None  # its round_trip counts from Stream.send
    error: InferenceError | None  # SupersededError if a newer frame replaced it
    num_sweeps: int = 0  # sweeps that were run together, the newest included; 0 if the stream does not merge sweeps
    detections: Detections | None = None  # its round_trip counts from Stream.send
    # Only for a model that has neither labels nor boxes. Otherwise requested tensors are in segmentation.tensors and
    # detections.tensors.
    tensors: Tensors | None = None


class ModelState(Enum):
    """The state of a model's version. Only a READY version serves requests."""

    UNKNOWN = 0
    LOADING = 1
    READY = 2
    FAILED = 3


@dataclass(frozen=True)
class FeatureInfo:
    """One input feature of a point that the network reads: a field of the cloud, in the field's canonical unit."""

    name: str  # the field's name
    unit: str  # "m", "s", or "1" for a number without a unit, such as an intensity of 0..1
    default: float | None  # the value for clouds that do not have the field; None: the field is required
    range: tuple[float, float] | None = None  # the values that the network was trained on; None: any


class VoxelOverflow(Enum):
    """Says what happens to a request with more voxels than the model's max_voxels."""

    UNKNOWN = 0  # the server does not tell
    REJECT = 1  # it is refused: InvalidArgumentError, reason TOO_MANY_VOXELS
    NEAREST_FIRST = 2  # the voxels nearest to the sensor are kept; PointCounts.dropped counts the rest
    FIRST_SEEN = 3  # the voxels that the points reach first are kept; the rest is counted too


@dataclass(frozen=True)
class Reach:
    """How far the points that can change a point's answer are from it: an upper bound from the network's structure."""

    # Per axis, in the unit of the cloud's coordinates: points that are farther away on any one axis change nothing.
    # Infinity: there is no such distance.
    distance: tuple[float, ...]
    unbounded_by: str = ""  # the layer that makes a distance infinite: it reads whole clouds
    # Per axis, in voxels: answers do not change if the cloud's smallest coordinate moves by a multiple of this number.
    # 1: it does not matter; 0: every other minimum can change the answers.
    minimum_period: tuple[int, ...] = ()


@dataclass(frozen=True)
class ModelVersion:
    """One version of a model in the server's repository."""

    name: str
    version: int
    state: ModelState
    problems: tuple[str, ...]  # why a FAILED version cannot be served
    description: str
    classes: tuple[ClassInfo, ...]
    ignore_label: int  # the label of points that have no class
    features: tuple[FeatureInfo, ...]  # in the network's order
    max_points: int  # the largest number of points in one request
    voxel_size: tuple[float, ...]  # metres, one value per axis
    num_parameters: int  # the number of values in the weights
    device: str  # "cpu" or "cuda:N"
    digest: str  # a hash of the graph and weights: versions with equal digests compute the same
    # The outputs of a READY version. Otherwise they are unknown: the flags are False, and tensors is empty.
    has_labels: bool = True  # Client.infer and segment can be used
    has_scores: bool = False  # scores=True can be used
    has_boxes: bool = False  # Client.detect can be used
    has_velocities: bool = False  # boxes have velocities
    tensors: tuple[TensorInfo, ...] = ()  # the tensors that outputs=[...] may name
    # These fields say what one request may hold, beside max_points. Older servers leave them out.
    max_voxels: int | None = None  # 0: no limit; None: not known
    voxel_overflow: VoxelOverflow = VoxelOverflow.UNKNOWN  # what happens to a request with more voxels
    max_message_bytes: int | None = None  # of a request, and of an answer; None: not known
    reach: Reach | None = None  # of a READY version; None: not known

    @property
    def class_names(self) -> dict[int, str]:
        """The names of the model's classes by their ids."""
        return {info.id: info.name for info in self.classes}

    def __repr__(self) -> str:
        return texts.of_model(self)


@dataclass(frozen=True)
class TuneProgress:
    """The progress of Client.tune_plan."""

    stage: str  # the current part of the search: "waiting for scans", "candidates", ...
    fraction: float  # the part of the whole search that is done, 0 to 1


@dataclass(frozen=True)
class TunedBucket:
    """Times before and after Client.tune_plan, for scans with min_voxels <= voxels < max_voxels."""

    min_voxels: int
    max_voxels: int | None  # None: no upper end
    num_scans: int  # measured scans in this range
    default_seconds: float  # the time from points to labels with the default plan, median over the scans
    tuned_seconds: float  # the time from points to labels with the plan that was found, median over the scans


@dataclass(frozen=True)
class TunedPlan:
    """The result of Client.tune_plan."""

    device: str  # the name of the device that was measured; the plan is used on every device of that name
    num_scans: int  # measured scans
    buckets: tuple[TunedBucket, ...]  # ascending
    seconds: float  # duration of the search
    path: str  # the plan's file on the server; "" if it could not be written
