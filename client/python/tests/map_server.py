"""A fake server whose labels depend on the neighbourhood of each point, as those of a network do."""

from __future__ import annotations

import threading
import time
from typing import Any

import grpc
import numpy as np
from conftest import FakeServer, fail

from voxserve import wire

VOXEL = np.array([0.5, 0.5, 0.25])
NUM_CLASSES = 2
BLOCK = 4  # voxels


def scores_of(xyz: np.ndarray[Any, Any], intensity: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Returns scores [N, 2] that depend on the points in the 27 voxels around each point, by whole numbers only. So
    they do not depend on the order of the points. intensity: whole numbers.
    """
    cells = np.floor(xyz / VOXEL).astype(np.int64)
    cells -= cells.min(axis=0) - 2
    strides = np.array([1 << 40, 1 << 20, 1])
    keys, voxel = np.unique(cells @ strides, return_inverse=True)
    counts = np.bincount(voxel)
    sums = np.bincount(voxel, intensity).astype(np.int64)
    around, light = np.zeros(len(keys), np.int64), np.zeros(len(keys), np.int64)
    for offset in np.ndindex(3, 3, 3):
        other = keys + (np.array(offset) - 1) @ strides
        at = np.searchsorted(keys, other) % len(keys)
        found = keys[at] == other
        around += np.where(found, counts[at], 0)
        light += np.where(found, sums[at], 0)
    value = (light // around + 7919 * around) % 997 / 997
    return np.stack([np.full(len(keys), 0.5), value * 1.1], axis=1)[voxel].astype(np.float32)


def coarse_scores_of(xyz: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Returns scores [N, 2] that depend on the points in the block of 4 x 4 x 4 voxels of each point. Voxels count
    from the smallest ones of the cloud, as those of a network with ORIGIN_MINIMUM.
    """
    cells = np.floor(xyz / VOXEL).astype(np.int64)
    blocks = (cells - cells.min(axis=0)) // BLOCK
    _, block = np.unique(blocks @ [1 << 40, 1 << 20, 1], return_inverse=True)
    value = np.bincount(block) * 7919 % 997 / 997
    return np.stack([np.full(len(value), 0.5), value * 1.1], axis=1)[block].astype(np.float32)


class MapServer(FakeServer):
    """A server of the models "local" (scores_of; intensity may lack), "strict" (needs intensity), "coloured" (reads red
    of 0..255 and return_number), "labels" (without scores) and "coarse" (coarse_scores_of). It tells limits beside
    max_points only after tell().
    """

    def __init__(self, port: int = 0) -> None:
        self.max_points = 2_000_000
        self.most_voxels = 1 << 60  # requests of more points are refused with TOO_MANY_VOXELS
        self.drops = False  # such requests are answered, and the points counted as dropped
        self.pause = 0.0  # seconds that an answer takes
        self.clouds: list[dict[str, np.ndarray[Any, Any]]] = []  # the fields of each request, in its unit
        self._told: dict[str, Any] = {}
        self._lock = threading.Lock()
        super().__init__(port)

    def tell(
        self, max_voxels: int = 0, max_message_bytes: int = 64 << 20, unbounded_by: str = "", period: int = BLOCK
    ) -> None:
        """Makes the server tell what servers older than these limits do not. period: the minimum's, of "coarse"."""
        self._told = {"max_voxels": max_voxels, "voxel_overflow": 1, "max_message_bytes": max_message_bytes}
        self._unbounded_by, self._period = unbounded_by, period

    def _infer(self, request: Any, context: grpc.ServicerContext) -> Any:
        cloud = request.cloud
        number = cloud.num_points
        if number > self.most_voxels and not self.drops:
            fail(context, grpc.StatusCode.INVALID_ARGUMENT, f"{number} voxels, the limit is x", "TOO_MANY_VOXELS")
        codes = {1: "i1", 2: "u1", 3: "<i2", 4: "<u2", 5: "<i4", 6: "<u4", 7: "<f4", 8: "<f8"}
        fields = {}
        for field in cloud.fields:
            dtype = np.dtype({"names": ["v"], "formats": [codes[field.type]], "offsets": [field.offset],
                              "itemsize": cloud.point_step})  # fmt: skip
            scale = field.scale if field.HasField("scale") else 1.0
            fields[field.name] = np.frombuffer(cloud.data, dtype, number)["v"] * scale + field.shift
        with self._lock:
            self.clouds.append(fields)
        if self.pause:
            time.sleep(self.pause)
        response = wire.InferResponse(model=request.model, version=3, device="cpu")
        xyz = np.stack([fields[axis] for axis in "xyz"], axis=1)
        assert np.isfinite(xyz).all()
        assert number <= self.max_points
        light = np.rint(fields.get("intensity", np.zeros(number)) * 65535)
        is_coarse = request.model == "coarse"
        scores = coarse_scores_of(xyz) if is_coarse else scores_of(xyz, np.nan_to_num(light))
        labels = scores.argmax(axis=1).astype(np.uint8)
        unlabelled = ~np.isfinite(light)
        labels[unlabelled], scores[unlabelled] = 255, 0
        answer = response.segmentation
        answer.bytes_per_label, answer.ignore_label, answer.num_classes = 1, 255, NUM_CLASSES
        answer.labels = labels.tobytes()
        if request.return_scores:
            answer.scores = scores.astype("<f4").tobytes()
        response.counts.used = number
        if number > self.most_voxels:
            response.counts.dropped = number - self.most_voxels
        return response

    def _model(self, name: str, version: int, state: int) -> Any:
        model = super()._model(name, version, state)
        model.max_points = self.max_points
        for field, value in self._told.items():
            setattr(model, field, value)
        if self._told:
            voxels = np.array([BLOCK] * 3 if name == "coarse" else [2, 2, 2])
            model.reach.distance.extend(voxels * VOXEL if not self._unbounded_by else [np.inf] * 3)
            model.reach.unbounded_by = self._unbounded_by
            model.reach.minimum_period.extend([self._period] * 3 if name == "coarse" else [1] * 3)
        if name == "coarse":  # reads no coordinates
            del model.features[0]
        if name == "strict":
            model.features[1].ClearField("default_value")
        if name == "labels":
            model.has_scores = False
        if name == "coloured":
            model.features.extend([wire.FeatureInfo(name="red", unit="1", range=wire.FeatureRange(low=0, high=255))])
            model.features.extend([wire.FeatureInfo(name="return_number", unit="1")])
        return model
