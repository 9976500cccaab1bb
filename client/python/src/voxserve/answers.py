"""The server's messages, checked and made into plain Python values."""

from __future__ import annotations

import time

import grpc
import numpy as np

from voxserve import errors, wire
from voxserve.farthest_points import FarthestPoints
from voxserve.results import (
    ClassInfo,
    FeatureInfo,
    ModelState,
    ModelVersion,
    PointCounts,
    Segmentation,
    Stage,
    TunedBucket,
    TunedPlan,
    TuneProgress,
)


def read_segmentation(
    response: wire.InferResponse, num_points: int, wants_scores: bool, sample: FarthestPoints | None, start: float
) -> Segmentation:
    """The answer, checked against the request. start: time.perf_counter() when the call began."""
    answer, counts = response.segmentation, response.counts
    width = answer.bytes_per_label
    if width not in (1, 2):
        raise malformed(f"labels of {width} bytes")
    if len(answer.labels) != num_points * width:
        raise malformed(f"{len(answer.labels)} bytes of labels for {num_points} points")
    shape = (num_points, answer.num_classes)
    if len(answer.scores) != (4 * shape[0] * shape[1] if wants_scores else 0):
        raise malformed(f"{len(answer.scores)} bytes of scores for {shape[0]} points of {shape[1]} classes")
    sampled = np.array(response.sampled_points, np.uint32)
    if len(sampled) != (0 if sample is None else sample.num_points):
        raise malformed(f"{len(sampled)} sampled points in place of {0 if sample is None else sample.num_points}")
    if len(sampled) and sampled.max() >= num_points:
        raise malformed(f"point {sampled.max()} sampled of {num_points}")
    return Segmentation(
        labels=np.frombuffer(answer.labels, "u1" if width == 1 else "<u2").copy(),
        scores=np.frombuffer(answer.scores, "<f4").reshape(shape).copy() if wants_scores else None,
        ignore_label=answer.ignore_label,
        num_classes=answer.num_classes,
        counts=PointCounts(
            counts.used, counts.invalid, counts.out_of_range, counts.dropped, counts.voxels, counts.unsampled
        ),
        stages=tuple(Stage(stage.name, stage.microseconds / 1e6) for stage in response.stages),
        model=response.model,
        version=response.version,
        device=response.device,
        request_id=response.request_id,
        round_trip=time.perf_counter() - start,
        sampled_points=None if sample is None else sampled,
    )


def read_model(model: wire.ModelVersion) -> ModelVersion:
    """A ModelVersion message as a plain value."""
    return ModelVersion(
        name=model.name,
        version=model.version,
        state=ModelState(model.state) if model.state in range(4) else ModelState.UNKNOWN,
        problems=tuple(model.problems),
        description=model.description,
        classes=tuple(ClassInfo(c.id, c.name, _rgb(c.color_rgb)) for c in model.classes),
        ignore_label=model.ignore_label,
        features=tuple(
            FeatureInfo(f.name, f.unit, f.default_value if f.HasField("default_value") else None)
            for f in model.features
        ),
        max_points=model.max_points,
        voxel_size=tuple(model.voxel_size),
        num_parameters=model.num_parameters,
        device=model.device,
        digest=model.digest,
    )


def read_progress(progress: wire.TunePlanProgress) -> TuneProgress:
    """How far a search has come."""
    return TuneProgress(progress.stage, progress.fraction)


def read_tuned_plan(result: wire.TunePlanResult) -> TunedPlan:
    """What a search found."""
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


def malformed(what: str) -> errors.InferenceError:
    """The error of an answer that contradicts its request or itself."""
    return errors.make(grpc.StatusCode.INTERNAL, f"the server's answer is malformed: {what}", "MALFORMED_RESPONSE")


def _rgb(color: int) -> tuple[int, int, int]:
    return color >> 16 & 255, color >> 8 & 255, color & 255
