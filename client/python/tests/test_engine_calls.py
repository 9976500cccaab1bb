"""Tests what voxserve.Engine and voxserve.load do around the compiled engine, with a stand-in of it.

They run without a build. test_engine.py has the compiled engine.
"""

from __future__ import annotations

import gc
import sys
import types
import weakref
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from conftest import REPOSITORY, status_of

import voxserve
from voxserve import wire

MODELS = REPOSITORY / "deploy" / "models"
POINTS = np.zeros((3, 4), np.float32)


class StatusError(Exception):
    """As the compiled module raises it."""


class StandIn:
    """The compiled engine's methods: a model "labels", a model "boxes", and a model "broken" that was not loaded."""

    def __init__(self, *_arguments: Any) -> None:
        self.num_descriptions = 0

    def infer(self, head: bytes, cloud: bytes, points: Any, _timeout: float) -> bytes:
        request, described = wire.InferRequest.FromString(head), wire.PointCloud.FromString(cloud)
        assert memoryview(points).nbytes == described.num_points * described.point_step
        response = wire.InferResponse(model=request.model, version=1, device="cpu")
        if request.model == "labels":
            answer = response.segmentation
            answer.bytes_per_label, answer.ignore_label, answer.num_classes = 1, 255, 2
            answer.labels = bytes([1] * described.num_points)
        else:
            response.detections.boxes.add(class_id=1, class_name="car", score=0.5)
        if request.outputs:
            kinds = {"type": wire.ELEMENT_TYPE_FLOAT32, "rows": wire.TENSOR_ROWS_SAMPLES}
            response.tensors.add(name=request.outputs[0], shape=[1, 1], data=bytes(4), **kinds)
        encoded: bytes = response.SerializeToString()
        return encoded

    def list_models(self) -> bytes:
        models = [_model(name) for name in ("boxes", "broken", "labels")]
        encoded: bytes = wire.ListModelsResponse(models=models).SerializeToString()
        return encoded

    def get_model(self, name: str, _version: int) -> bytes:
        self.num_descriptions += 1
        encoded: bytes = wire.GetModelResponse(model=_model(name)).SerializeToString()
        return encoded

    def close(self) -> None:
        """Does nothing."""


def _model(name: str) -> Any:
    model = wire.ModelVersion(name=name, version=1, state=wire.MODEL_STATE_READY, device="cpu")
    if name == "broken":
        model.state = wire.MODEL_STATE_FAILED
        model.problems.extend(["node 'a': no input", "tensor 'b' is missing"])
    model.has_labels, model.has_boxes = name == "labels", name == "boxes"
    model.classes.extend([wire.ClassInfo(id=0, name="road"), wire.ClassInfo(id=1, name="car", color_rgb=0x285AFF)])
    return model


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The compiled module's stand-in."""
    package: Any = types.ModuleType("voxserve_server")
    made: Any = types.ModuleType("voxserve_server._engine")
    made.version, made.__file__ = voxserve.__version__, "/stand-in/_engine.so"
    made.LocalEngine, made.StatusError, made.DevicePoints = StandIn, StatusError, types.SimpleNamespace
    package._engine = made
    monkeypatch.setitem(sys.modules, "voxserve_server", package)
    monkeypatch.setitem(sys.modules, "voxserve_server._engine", made)
    return made


@pytest.fixture
def engine(module: Any) -> voxserve.Engine:
    return voxserve.Engine(MODELS)


def test_an_engine_of_another_version_is_refused(module: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(voxserve, "__version__", "1.2.3")
    module.version = "1.2.2"
    text = (
        r"^the engine in /stand-in/_engine\.so has version 1\.2\.2, and the package voxserve has version 1\.2\.3; "
        r"install both with one version: pip install --upgrade 'voxserve\[server\]'$"
    )
    with pytest.raises(ImportError, match=text):
        voxserve.Engine(MODELS)
    del module.version  # an engine before versions were compared
    with pytest.raises(ImportError, match="has version unknown"):
        voxserve.load(MODELS, model="labels")
    module.version = "1.2.3"
    assert voxserve.Engine(MODELS).segment("labels", POINTS).tolist() == [1, 1, 1]


def test_a_package_without_a_version_takes_every_engine(module: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(voxserve, "__version__", voxserve.UNKNOWN_VERSION)
    module.version = "1.2.2"
    assert voxserve.Engine(MODELS).segment("labels", POINTS).tolist() == [1, 1, 1]


def test_every_call_of_a_client_runs_on_an_engine(engine: voxserve.Engine) -> None:
    assert engine.segment("labels", POINTS).tolist() == [1, 1, 1]
    assert engine.infer("labels", POINTS).count_by_class() == {"car": 3}
    found = engine.detect("boxes", POINTS)
    assert found.class_names == {0: "road", 1: "car"}
    assert found.names == ("car",)
    assert engine.tensors("boxes", POINTS, outputs=["deep"]).tensors["deep"].rows.shape == (1, 1)
    assert [info.name for info in engine.models()] == ["boxes", "broken", "labels"]
    assert engine.model("labels").has_labels


def test_classes_are_asked_for_once(engine: voxserve.Engine) -> None:
    for _ in range(3):
        engine.infer("labels", POINTS)
    assert engine._native.num_descriptions == 1


def test_names_outlive_the_engine_and_do_not_keep_it(module: Any) -> None:
    made = voxserve.Engine(MODELS)
    results: list[Any] = [made.infer("labels", POINTS), made.detect("boxes", POINTS)]
    freed = weakref.ref(made)
    made.close()
    del made
    gc.collect()
    assert freed() is None
    assert [result.class_names for result in results] == [{0: "road", 1: "car"}] * 2


def test_load_runs_what_the_model_answers(module: Any) -> None:
    assert isinstance(voxserve.load(MODELS, model="labels").infer(POINTS), voxserve.Segmentation)
    assert isinstance(voxserve.load(MODELS, model="boxes").infer(POINTS), voxserve.Detections)


def test_load_refuses_a_model_that_was_not_loaded(module: Any) -> None:
    problems = "model 'broken' version 1 could not be loaded: node 'a': no input; tensor 'b' is missing"
    with pytest.raises(voxserve.FailedPreconditionError, match=problems) as caught:
        voxserve.load(MODELS, model="broken")
    assert caught.value.reason == "BAD_MODEL"


def test_an_error_of_the_engine_has_its_class_and_reason(
    engine: voxserve.Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_arguments: Any) -> bytes:
        raise StatusError(status_of(grpc.StatusCode.NOT_FOUND, "no model 'x'", "MODEL_NOT_FOUND").SerializeToString())

    monkeypatch.setattr(engine._native, "infer", fail)
    with pytest.raises(voxserve.NotFoundError, match="no model 'x'") as caught:
        engine.infer("x", POINTS)
    assert caught.value.reason == "MODEL_NOT_FOUND"


class OnGpu:
    """An array on a GPU of another library."""

    shape = (4, 4)

    def __dlpack_device__(self) -> tuple[int, int]:
        return 13, 2  # CUDA's managed memory, of the third GPU

    def __dlpack__(self, *, stream: int) -> Any:
        return f"on stream {stream}"


def test_points_on_a_gpu_are_copied_once(engine: voxserve.Engine) -> None:
    engine._copies = types.SimpleNamespace(
        stream=lambda device: 70 + device,
        copy_to_host=lambda tensor: np.ones((4, 4), np.float32) if tensor == "on stream 72" else None,
    )
    assert len(engine.segment("labels", OnGpu())) == 4


def test_points_on_a_gpu_with_gaps_are_refused(engine: voxserve.Engine) -> None:
    def refuse(_tensor: Any) -> Any:
        raise TypeError("incompatible function arguments")

    engine._copies = types.SimpleNamespace(stream=lambda _device: 7, copy_to_host=refuse)
    with pytest.raises(ValueError, match=r"\(4, 4\), are not contiguous, row after row; copy them first"):
        engine.segment("labels", OnGpu())


def test_links_go_to_a_temporary_folder_without_a_home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def homeless(path: Path) -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    monkeypatch.setattr(Path, "expanduser", homeless)
    folder = voxserve.local_models.repository_of([MODELS / "minkunet"])
    assert folder.parent == tmp_path
    assert (folder / "minkunet").resolve() == MODELS / "minkunet"
