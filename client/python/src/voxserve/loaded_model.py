"""One model in this process: voxserve.load(folder).infer(points)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import grpc

from voxserve import errors
from voxserve.engine import Engine
from voxserve.farthest_points import FarthestPoints
from voxserve.inputs import PointsLike
from voxserve.local_models import ModelPath
from voxserve.point_cloud import Fields
from voxserve.results import Detections, ModelState, ModelVersion, Segmentation, Tensors
from voxserve.tensors import TensorType


def load(folder: ModelPath, device: str = "", *, model: str = "", version: int = 0, **options: Any) -> LoadedModel:
    """Loads a model into this process, and returns it.

    folder: a model's folder, such as deploy/models/minkunet; the name of a model of the package voxserve-models; or a
        repository, where `model` names one of its models, unless it has only one.
    device, options: those of voxserve.Engine, which has the errors too.
    version: the model's version; 0 for the newest.

    ValueError if the repository has several models and `model` names none; FailedPreconditionError, with its problems,
    if the model could not be loaded.
    """
    engine = Engine(folder, device, **options)
    try:
        if not model:
            names = sorted({info.name for info in engine.models() if info.state != ModelState.UNKNOWN})
            if len(names) > 1:
                raise ValueError(
                    f"{folder} has the models {', '.join(names)}; say which: load(..., model='{names[0]}')"
                )
            model = names[0]
        info = engine.model(model, version)
        if info.state != ModelState.READY:
            problems = "; ".join(info.problems) or f"it is {info.state.name}"
            text = f"model '{info.name}' version {info.version} could not be loaded: {problems}"
            raise errors.make(grpc.StatusCode.FAILED_PRECONDITION, text, "BAD_MODEL")
        return LoadedModel(engine, info)
    except BaseException:
        engine.close()
        raise


class LoadedModel:
    """A model of an Engine. load() makes it.

    engine: the engine, which has all methods of voxserve.Client that ask for answers.
    info: the model's description: its classes, the features that it reads, its limits.
    """

    def __init__(self, engine: Engine, info: ModelVersion) -> None:
        self.engine = engine
        self.info = info

    def infer(
        self,
        points: PointsLike,
        *,
        fields: Fields = None,
        scales: Mapping[str, float] | None = None,
        scores: bool = False,
        sample: FarthestPoints | None = None,
        outputs: Sequence[str] = (),
        tensor_type: TensorType = "float32",
        timeout: float | None = None,
    ) -> Segmentation | Detections | Tensors:
        """Returns what the model answers: labels, else boxes, else tensors. Arguments and errors are those of
        voxserve.Client.infer; `scores` goes with labels alone. (A model with labels and boxes: detect() has the boxes.)
        """
        name = self.info.name
        common: dict[str, Any] = {
            "fields": fields,
            "scales": scales,
            "version": self.info.version,
            "sample": sample,
            "outputs": outputs,
            "tensor_type": tensor_type,
            "timeout": timeout,
        }
        if self.info.has_labels:
            return self.engine.infer(name, points, scores=scores, **common)
        if scores:
            raise ValueError(f"scores are those of labels, and model '{name}' has none")
        return self.engine.detect(name, points, **common) if self.info.has_boxes else self.tensors(points, **common)

    def detect(self, points: PointsLike, **arguments: Any) -> Detections:
        """Returns the boxes; arguments and errors as in voxserve.Client.detect."""
        return self.engine.detect(self.info.name, points, **{"version": self.info.version, **arguments})

    def tensors(self, points: PointsLike, **arguments: Any) -> Tensors:
        """Returns values of the network; arguments and errors as in voxserve.Client.tensors."""
        return self.engine.tensors(self.info.name, points, **{"version": self.info.version, **arguments})

    def close(self) -> None:
        """Frees the model's memory."""
        self.engine.close()

    def __enter__(self) -> LoadedModel:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"LoadedModel({self.info.name!r}, version={self.info.version}, device={self.info.device!r})"
