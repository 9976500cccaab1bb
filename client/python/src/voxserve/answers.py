"""Checks the server's messages and converts them to plain Python values."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import grpc
import numpy as np
import numpy.typing as npt

from voxserve import errors, feature_warning, wire
from voxserve.farthest_points import FarthestPoints
from voxserve.feature_warning import FeatureWarning
from voxserve.known_classes import ClassLookup, Teller
from voxserve.results import (
    ClassInfo,
    Detections,
    FeatureInfo,
    Labels,
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
from voxserve.source import Source
from voxserve.tensors import UNNAMED, Tensor, Wanted, read_info, read_tensor


@dataclass(frozen=True)
class Asked:
    """The parts of a request that are needed to check and convert its answer."""

    num_points: int
    start: float  # time.perf_counter() when the call began, for Answer.round_trip
    wants_scores: bool = False
    sample: FarthestPoints | None = None
    tensors: Wanted = UNNAMED
    source: Source = field(default_factory=Source)  # the request's points, for pictures of the answer
    tell: Teller | None = None  # tells the classes of the answer's model


def read_segmentation(response: wire.InferResponse, asked: Asked) -> Segmentation:
    """Returns the answer. Raises the errors UNSUPPORTED_OUTPUT if it has boxes or tensors instead of labels, and
    MALFORMED_RESPONSE if it does not match the request.
    """
    if not response.HasField("segmentation"):
        raise _other_output(response, "detections", "boxes", "labels", "detect")
    answer, num_points, wants_scores = response.segmentation, asked.num_points, asked.wants_scores
    width = answer.bytes_per_label
    if width not in (1, 2):
        raise malformed(f"labels of {width} bytes")
    if len(answer.labels) != num_points * width:
        raise malformed(f"{len(answer.labels)} bytes of labels for {num_points} points")
    shape = (num_points, answer.num_classes)
    if len(answer.scores) != (4 * shape[0] * shape[1] if wants_scores else 0):
        raise malformed(f"{len(answer.scores)} bytes of scores for {shape[0]} points of {shape[1]} classes")
    common = _read_common(response, asked)
    return Segmentation(
        **common,
        labels=np.frombuffer(answer.labels, "u1" if width == 1 else "<u2").copy(),
        scores=np.frombuffer(answer.scores, "<f4").reshape(shape).copy() if wants_scores else None,
        ignore_label=answer.ignore_label,
        num_classes=answer.num_classes,
        detections=_read_boxes(response, common) if response.HasField("detections") else None,
    )


def read_labels(response: wire.InferResponse, asked: Asked) -> Labels:
    """Returns the labels of read_segmentation()."""
    return read_segmentation(response, asked).labels


def read_detections(response: wire.InferResponse, asked: Asked) -> Detections:
    """Returns the answer. Raises the errors UNSUPPORTED_OUTPUT if it has labels or tensors instead of boxes, and
    MALFORMED_RESPONSE if it does not match the request.
    """
    if not response.HasField("detections"):
        raise _other_output(response, "segmentation", "labels", "boxes", "infer or segment")
    return _read_boxes(response, _read_common(response, asked))


def _read_boxes(response: wire.InferResponse, common: dict[str, Any]) -> Detections:
    boxes = response.detections.boxes
    numbers = np.array(
        [(b.x, b.y, b.z, b.length, b.width, b.height, b.yaw, b.velocity_x, b.velocity_y, b.score) for b in boxes],
        np.float32,
    ).reshape(len(boxes), 10)
    finite = np.isfinite(numbers).all(axis=1)
    if not finite.all():
        raise malformed(f"box {finite.argmin()} is not finite")
    return Detections(
        **common,
        boxes=numbers[:, :7].copy(),
        velocities=numbers[:, 7:9].copy(),
        scores=numbers[:, 9].copy(),
        class_ids=np.array([b.class_id for b in boxes], np.uint32),
        names=tuple(b.class_name for b in boxes),
        queries=_queries(boxes),
    )


def _queries(boxes: Sequence[wire.Box]) -> npt.NDArray[np.int32] | None:
    queries = np.array([b.query if b.HasField("query") else -1 for b in boxes], np.int32)
    return queries if (queries >= 0).any() else None


def read_tensors(response: wire.InferResponse, asked: Asked) -> Tensors:
    """Returns only the answer's tensors. UNSUPPORTED_OUTPUT if it has other outputs and no tensors."""
    if not response.tensors:
        if not response.HasField("segmentation") and not response.HasField("detections"):
            raise malformed("neither labels nor boxes nor tensors")
        has = "labels" if response.HasField("segmentation") else "boxes"
        message = f"model '{response.model}' answers {has}, and tensors only where outputs names them"
        raise errors.make(grpc.StatusCode.INVALID_ARGUMENT, message, "UNSUPPORTED_OUTPUT")
    return Tensors(**_read_common(response, asked))


def read_outputs(
    response: wire.InferResponse, asked: Asked
) -> tuple[Segmentation | None, Detections | None, Tensors | None]:
    """Returns the labels, the boxes and the tensors of an answer, None for those that it does not have. Tensors is only
    returned if there are neither labels nor boxes. Raises the error MALFORMED_RESPONSE if there is no output, or if the
    answer does not match the request.
    """
    if response.HasField("segmentation"):
        segmentation = read_segmentation(response, asked)
        return segmentation, segmentation.detections, None
    if response.HasField("detections"):
        return None, read_detections(response, asked), None
    if not response.tensors:
        raise malformed("neither labels nor boxes nor tensors")
    return None, None, read_tensors(response, asked)


def _read_common(response: wire.InferResponse, asked: Asked) -> dict[str, Any]:
    """Returns the arguments of Answer's constructor."""
    counts, num_sampled = response.counts, 0 if asked.sample is None else asked.sample.num_points
    sampled = np.array(response.sampled_points, np.uint32)
    if len(sampled) != num_sampled:
        raise malformed(f"{len(sampled)} sampled points in place of {num_sampled}")
    if len(sampled) and sampled.max() >= asked.num_points:
        raise malformed(f"point {sampled.max()} sampled of {asked.num_points}")
    warnings = tuple(_read_warning(warning) for warning in response.warnings)
    feature_warning.tell(response.model, warnings)
    point_counts = PointCounts(
        counts.used,
        counts.invalid,
        counts.out_of_range,
        counts.dropped,
        counts.voxels,
        counts.unsampled,
        counts.not_finite,
        counts.boxes_not_finite,
    )
    feature_warning.tell_of_range(response.model, point_counts)
    feature_warning.tell_of_not_finite(response.model, point_counts)
    return {
        "warnings": warnings,
        "counts": point_counts,
        "stages": tuple(Stage(stage.name, stage.microseconds / 1e6) for stage in response.stages),
        "model": response.model,
        "version": response.version,
        "device": response.device,
        "request_id": response.request_id,
        "round_trip": time.perf_counter() - asked.start,
        "sampled_points": None if asked.sample is None else sampled,
        "tensors": _read_tensors(response, asked),
        "source": asked.source,
        "class_lookup": asked.tell(response.model, response.version) if asked.tell else ClassLookup(),
    }


def _read_warning(warning: wire.FeatureWarning) -> FeatureWarning:
    return FeatureWarning(
        warning.feature,
        warning.range.low,
        warning.range.high,
        warning.smallest,
        warning.largest,
        warning.num_checked,
        warning.num_outside,
    )


def _read_tensors(response: wire.InferResponse, asked: Asked) -> dict[str, Tensor]:
    try:
        tensors = {tensor.name: read_tensor(tensor, asked.num_points) for tensor in response.tensors}
    except ValueError as error:
        raise malformed(str(error)) from None
    missing = [name for name in asked.tensors.names if name not in tensors]
    if missing or len(tensors) != len(response.tensors):
        raise malformed(f"no tensor '{missing[0]}'" if missing else "a tensor appears twice")
    return tensors


def _other_output(response: wire.InferResponse, field: str, has: str, lacks: str, calls: str) -> errors.InferenceError:
    if not response.HasField(field):
        if not response.tensors:
            return malformed("neither labels nor boxes")
        has, calls = "tensors", "tensors"
    message = f"model '{response.model}' answers {has} and no {lacks}; ask it with {calls}"
    return errors.make(grpc.StatusCode.INVALID_ARGUMENT, message, "UNSUPPORTED_OUTPUT")


def read_model(model: wire.ModelVersion) -> ModelVersion:
    """Returns the ModelVersion of a message."""
    return ModelVersion(
        name=model.name,
        version=model.version,
        state=ModelState(model.state) if model.state in range(4) else ModelState.UNKNOWN,
        problems=tuple(model.problems),
        description=model.description,
        classes=tuple(ClassInfo(c.id, c.name, _rgb(c.color_rgb)) for c in model.classes),
        ignore_label=model.ignore_label,
        features=tuple(
            FeatureInfo(
                f.name,
                f.unit,
                f.default_value if f.HasField("default_value") else None,
                (f.range.low, f.range.high) if f.HasField("range") else None,
            )
            for f in model.features
        ),
        max_points=model.max_points,
        voxel_size=tuple(model.voxel_size),
        num_parameters=model.num_parameters,
        device=model.device,
        digest=model.digest,
        # Servers that are older than models with boxes set neither has_labels nor has_boxes for a ready model.
        has_labels=model.has_labels
        or (model.state == wire.MODEL_STATE_READY and not model.has_boxes and not model.tensors),
        has_scores=model.has_scores,
        has_boxes=model.has_boxes,
        has_velocities=model.has_velocities,
        tensors=tuple(read_info(info) for info in model.tensors),
        # Servers that are older than these fields leave all of them out.
        max_voxels=model.max_voxels if model.voxel_overflow else None,
        voxel_overflow=VoxelOverflow(model.voxel_overflow)
        if model.voxel_overflow in range(4)
        else VoxelOverflow.UNKNOWN,
        max_message_bytes=model.max_message_bytes or None,
        reach=_read_reach(model.reach) if model.HasField("reach") else None,
    )


def _read_reach(reach: wire.Reach) -> Reach:
    return Reach(tuple(reach.distance), reach.unbounded_by, tuple(reach.minimum_period))


def read_progress(progress: wire.TunePlanProgress) -> TuneProgress:
    """Returns the TuneProgress of a message."""
    return TuneProgress(progress.stage, progress.fraction)


def read_tuned_plan(result: wire.TunePlanResult) -> TunedPlan:
    """Returns the TunedPlan of a message."""
    return TunedPlan(
        device=result.device,
        num_scans=result.num_scans,
        buckets=tuple(
            TunedBucket(b.min_voxels, b.max_voxels or None, b.num_scans, b.default_ms / 1e3, b.tuned_ms / 1e3)
            for b in result.buckets
        ),
        seconds=result.seconds,
        path=result.path,
    )


def parse(message: Any, data: bytes) -> Any:
    """Returns the message of the class `message`. Raises the error MALFORMED_RESPONSE if the bytes are none."""
    try:
        return message.FromString(data)
    except Exception:  # protobuf's DecodeError, whose class depends on the version
        raise malformed(f"bytes that are no {message.DESCRIPTOR.name}") from None


def malformed(what: str) -> errors.InferenceError:
    """Returns the error MALFORMED_RESPONSE, for an answer that contradicts its request or itself. what: the problem."""
    return errors.make(grpc.StatusCode.INTERNAL, f"the server's answer is malformed: {what}", "MALFORMED_RESPONSE")


def _rgb(color: int) -> tuple[int, int, int]:
    return color >> 16 & 255, color >> 8 & 255, color & 255
