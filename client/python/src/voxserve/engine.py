"""The engine in this process: the models and answers of a server, without one.

    model = voxserve.load("deploy/models/minkunet")
    result = model.infer(points)  # a Segmentation; of a detector, Detections

    engine = voxserve.Engine("deploy/models")  # several models; the methods of voxserve.Client
    labels = engine.segment("minkunet", points)

Needs the package voxserve-server (pip install 'voxserve[server]'), or a build with VOXSERVE_BUILD_PYTHON.
"""

from __future__ import annotations

import atexit
import functools
import math
import os
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, TypeVar

import numpy as np

from voxserve import client, compiled, errors, local_models, wire
from voxserve.encoding import CloudRequest
from voxserve.inputs import PointsLike
from voxserve.known_classes import ClassLookup, Key, KnownClasses
from voxserve.local_models import ModelPath
from voxserve.protocol import Call, Options, Result
from voxserve.results import Answer, ClassInfo

_Parameters = ParamSpec("_Parameters")
_Answer = TypeVar("_Answer")
_MAX_BYTES = (1 << 31) - 1  # protobuf's limit
_CUDA_DEVICES = (2, 13)  # DLPack's kDLCUDA and kDLCUDAManaged


def _inferring(
    method: Callable[Concatenate[Any, str, PointsLike, _Parameters], _Answer],
) -> Callable[Concatenate[Any, str, PointsLike, _Parameters], _Answer]:
    """Returns a method of voxserve.Client that works on an Engine; it ends with _run."""

    @functools.wraps(method)
    def call(
        self: Any, /, model: str, points: PointsLike, *arguments: _Parameters.args, **keywords: _Parameters.kwargs
    ) -> _Answer:
        return method(self, model, self._on_host(points), *arguments, **keywords)

    return call  # type: ignore[return-value]  # its arguments have names, which the type does not tell


def _asking(
    method: Callable[Concatenate[Any, _Parameters], _Answer],
) -> Callable[Concatenate[Any, _Parameters], _Answer]:
    """Returns a method of voxserve.Client without points that works on an Engine."""

    @functools.wraps(method)
    def call(self: Any, /, *arguments: _Parameters.args, **keywords: _Parameters.kwargs) -> _Answer:
        return method(self, *arguments, **keywords)

    return call


class Engine:
    """Runs models in this process. The methods segment, infer, detect, tensors, models and model are those of
    voxserve.Client, with the same results and errors; a request without a timeout may take any time.

    models: a model's folder, a repository (a folder of models), the name of a model of the package voxserve-models, or
        a list of models.
    device: "" for every GPU, else the CPU; "cpu"; or "cuda:0", "cuda:0,cuda:1".
    threads: CPU threads; 0 for as many as this process may use.
    deterministic: True makes the bytes of an answer independent of other requests.
    plan_dir: a folder of tuned plans, besides those in the models' folders.

    Returns when the models are loaded. FileNotFoundError or ValueError if there are no such models, InferenceError if
    none can be loaded (FailedPreconditionError, with every model's problems) or the device cannot be used.

    Thread-safe: several threads may run requests at once, which the engine batches. The GIL is free while one runs.
    Ctrl-C ends a request. An engine belongs to the process that made it; a pickled one is made anew. close() frees its
    memory, as does a `with` block.

    Points may also be an array of another library on a GPU (DLPack: CuPy, JAX, ...). It is copied on a stream that
    waits for the library's own stream. The arrays of results are NumPy's; torch.from_dlpack(result.labels) shares
    their memory.
    """

    segment = _inferring(client.Client.segment)
    infer = _inferring(client.Client.infer)
    detect = _inferring(client.Client.detect)
    tensors = _inferring(client.Client.tensors)
    models = _asking(client.Client.models)
    model = _asking(client.Client.model)
    _ask_classes = _asking(client.Client._ask_classes)

    def __init__(
        self,
        models: ModelPath | Sequence[ModelPath],
        device: str = "",
        *,
        threads: int = 0,
        deterministic: bool = False,
        plan_dir: ModelPath = "",
    ) -> None:
        paths = [models] if isinstance(models, (str, os.PathLike)) else list(models)
        named = [Path(path).resolve() if Path(path).is_dir() else Path(path) for path in paths]
        self._arguments = ([os.fspath(path) for path in named], device)
        self._keywords = {"threads": threads, "deterministic": deterministic, "plan_dir": os.fspath(plan_dir)}
        self._options = Options("in-this-process", timeout=None, max_message_bytes=_MAX_BYTES)
        self._classes = KnownClasses()
        self._module = compiled.engine_module()
        repository = os.fspath(local_models.repository_of(paths))
        self._native = self._called(
            lambda: self._module.LocalEngine(repository, device, threads, deterministic, os.fspath(plan_dir))
        )
        self._copies = self._module.DevicePoints()
        _open_engines.add(self)

    @property
    def devices(self) -> str:
        """Returns the devices that run the models, such as "cpu" or "cuda:0,cuda:1"."""
        devices: str = self._called(lambda: self._native.devices)
        return devices

    def close(self) -> None:
        """Waits for the requests that run, and frees devices and memory. Later requests get FailedPreconditionError."""
        self._native.close()

    def __enter__(self) -> Engine:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        models, device = self._arguments
        return f"Engine({models[0] if len(models) == 1 else models!r}{f', device={device!r}' if device else ''})"

    def __reduce__(self) -> tuple[Any, ...]:
        """Makes a pickled engine anew, from the same folders."""
        return functools.partial(Engine, **self._keywords), self._arguments  # type: ignore[arg-type]

    def _run(self, call: Call[Result], timeout: float | None) -> Result:
        """Runs the call of a method that Client has too."""
        request = call.request
        if isinstance(request, CloudRequest):
            limit = self._options.timeout_of(timeout)
            seconds = math.inf if limit is None else limit
            data = self._called(lambda: self._native.infer(request.head, request.cloud, request.data, seconds))
            answer = call.read(data)
            if isinstance(answer, Answer):
                answer.class_lookup.read()  # now: the answer may outlive the engine, and must not keep it alive
            return answer
        if call.method.endswith("/ListModels"):
            answer = self._called(self._native.list_models)
        else:
            asked = wire.GetModelRequest.FromString(request)
            answer = self._called(lambda: self._native.get_model(asked.model, asked.version))
        return call.read(answer)

    def _classes_of(self, model: str, version: int) -> ClassLookup:
        """Returns what an answer of the model's version knows of its classes, as a known_classes.Teller."""
        return self._classes.lookup(self._tell_classes, model, version)

    def _tell_classes(self, key: Key, may_ask: bool) -> tuple[ClassInfo, ...] | None:
        return self._classes.of(key, self._ask_classes if may_ask else None)

    def _called(self, function: Callable[[], Any]) -> Any:
        try:
            return function()
        except self._module.StatusError as error:
            failure = errors.from_status(wire.Status.FromString(error.args[0]))
            assert failure is not None
            raise failure from None

    def _on_host(self, points: Any) -> Any:
        """Returns points on a GPU as a NumPy array, and others unchanged. (Torch copies its tensors itself, on its
        current stream.) ValueError if the array is not contiguous.
        """
        where = getattr(points, "__dlpack_device__", None)
        if where is None or callable(getattr(points, "detach", None)):
            return points
        kind, index = (int(number) for number in where())
        if kind not in _CUDA_DEVICES:
            return points
        stream = self._called(lambda: self._copies.stream(index))
        tensor = points.__dlpack__(stream=stream)
        try:
            return np.asarray(self._called(lambda: self._copies.copy_to_host(tensor)))
        except TypeError:
            raise ValueError(
                f"the points on the GPU, {getattr(points, 'shape', '')}, are not contiguous, row after row; "
                "copy them first (cupy.ascontiguousarray)"
            ) from None


_open_engines: weakref.WeakSet[Engine] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    """Ends the engines' threads before the interpreter ends."""
    for engine in list(_open_engines):
        engine.close()
