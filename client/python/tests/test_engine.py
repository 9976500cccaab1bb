"""Tests the engine in this process, voxserve.Engine: its answers beside a server's, threads, errors, DLPack.

They skip where the engine is not built as a module (VOXSERVE_BUILD_PYTHON).
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import REPOSITORY, SHARED, ServerAddress, serving

import voxserve
from voxserve.export.__main__ import main as export_main

native = pytest.importorskip("voxserve_server._engine", reason="the engine is not built as a Python module")

MODELS = REPOSITORY / "deploy" / "models"
SCANS = [REPOSITORY / "deploy" / "scans" / "pandaset_070.bin", REPOSITORY / "tests" / "golden" / "pandaset_063.bin"]


@pytest.fixture(scope="module", autouse=True)
def cache_of_links(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="module")
def engine() -> Iterator[voxserve.Engine]:
    with voxserve.Engine(MODELS) as made:  # on a GPU where there is one, as a server
        yield made


@pytest.fixture(scope="module")
def scan() -> Any:
    return np.fromfile(SCANS[0], np.float32).reshape(-1, 4)


@pytest.fixture(scope="module")
def few(scan: Any) -> Any:
    return scan[::40].copy()  # runs in a fraction of a second


def real_scans() -> list[Path]:
    return [*SCANS, *sorted(SHARED.glob("semantickitti-00/**/*.bin"))[:1]]


def same(local: Any, served: Any) -> None:
    """Fails unless both answers have the same bytes, times and identity aside."""
    assert type(local) is type(served)
    assert (local.model, local.version, local.counts) == (served.model, served.version, served.counts)
    for name in ("labels", "scores", "boxes", "velocities", "class_ids", "queries", "sampled_points"):
        ours, theirs = getattr(local, name, None), getattr(served, name, None)
        assert (ours is None) == (theirs is None), name
        if ours is not None:
            assert ours.dtype == theirs.dtype
            assert ours.tobytes() == theirs.tobytes(), name
    assert local.classes == served.classes
    assert list(local.tensors) == list(served.tensors)
    for name, tensor in local.tensors.items():
        assert tensor.rows.tobytes() == served.tensors[name].rows.tobytes(), name
    assert [stage.name for stage in local.stages] == [stage.name for stage in served.stages]


@pytest.mark.integration
@pytest.mark.parametrize("path", real_scans(), ids=lambda path: path.stem)
def test_answers_have_the_bytes_of_a_server(engine: voxserve.Engine, real_server: ServerAddress, path: Path) -> None:
    cloud = voxserve.read(path)
    with voxserve.Client(real_server, timeout=300) as client:
        same(engine.infer("minkunet", cloud, scores=True), client.infer("minkunet", cloud, scores=True))
        sample = voxserve.FarthestPoints(64)
        same(engine.detect("centerpoint", cloud, sample=sample), client.detect("centerpoint", cloud, sample=sample))
        # Only a server limits messages.
        assert engine.models() == [replace(info, max_message_bytes=None) for info in client.models()]
        assert engine.model("minkunet") == replace(client.model("minkunet"), max_message_bytes=None)


@pytest.mark.integration
def test_tensors_have_the_bytes_of_a_server(tmp_path: Path, few: Any) -> None:
    export_main(["svtnet", "--output", os.fspath(tmp_path / "models" / "places")])
    with (
        serving(tmp_path / "models", tmp_path / "log") as address,
        voxserve.Client(address, timeout=300) as client,
        voxserve.load(tmp_path / "models") as model,
    ):
        answer = model.infer(few)
        assert isinstance(answer, voxserve.Tensors)
        same(answer, client.tensors("places", few))
        same(model.tensors(few, tensor_type="float16"), client.tensors("places", few, tensor_type="float16"))


@pytest.mark.integration
def test_errors_are_those_of_a_server(engine: voxserve.Engine, real_server: ServerAddress, few: Any) -> None:
    with voxserve.Client(real_server, timeout=60) as client:

        def error_of(asked: Any, *arguments: Any, **keywords: Any) -> tuple[Any, ...]:
            with pytest.raises(voxserve.InferenceError) as caught:
                asked.infer(*arguments, **keywords)
            return type(caught.value), caught.value.message, caught.value.reason, caught.value.code

        short = voxserve.PointCloud(few.tobytes()[:-3], len(few), 16, voxserve.PointCloud.from_array(few).fields)
        cases: list[tuple[tuple[Any, ...], dict[str, Any]]] = [
            (("nothing", few), {}),
            (("minkunet", few), {"version": 7}),
            (("minkunet", {"x": few[:, 0], "y": few[:, 1]}), {}),
            (("minkunet", short), {}),
            (("minkunet", few), {"outputs": ["nowhere"]}),
            (("minkunet", few), {"priority": 3}),
            (("minkunet", few), {"sample": voxserve.FarthestPoints(len(few) + 1)}),
            (("centerpoint", few), {}),  # has boxes and no labels
        ]
        for arguments, keywords in cases:
            ours, theirs = error_of(engine, *arguments, **keywords), error_of(client, *arguments, **keywords)
            assert ours == theirs
            assert ours[2]


def test_load_runs_one_model_by_what_it_answers(few: Any) -> None:
    with voxserve.load(MODELS / "minkunet", device="cpu") as model:
        result = model.infer(few, scores=True)
        assert isinstance(result, voxserve.Segmentation)
        assert result.labels.shape == (len(few),)
        assert result.device == "cpu"
        assert result.round_trip > 0
        assert "minkunet" in repr(model)
        with pytest.raises(voxserve.NotFoundError, match="centerpoint"):
            model.engine.detect("centerpoint", few)
    with voxserve.load(MODELS, device="cpu", model="centerpoint") as model:
        found = model.infer(few)
        assert isinstance(found, voxserve.Detections)
        with pytest.raises(ValueError, match="has none"):
            model.infer(few, scores=True)


def test_a_repository_of_several_models_needs_a_name() -> None:
    with pytest.raises(ValueError, match=r"centerpoint, minkunet; say which: load\(\.\.\., model='centerpoint'\)"):
        voxserve.load(MODELS, device="cpu")


def test_several_models_become_a_repository(few: Any) -> None:
    with voxserve.Engine([MODELS / "minkunet", MODELS / "centerpoint"], device="cpu") as engine:
        assert [info.name for info in engine.models()] == ["centerpoint", "minkunet"]
        assert engine.segment("minkunet", few).shape == (len(few),)


@pytest.mark.parametrize(
    ("name", "text"),
    [("missing", "missing is no folder"), ("minkunet/1", "name the model"), ("minkunet/1/model.textproto", "is no f")],
)
def test_paths_that_are_no_models(name: str, text: str) -> None:
    with pytest.raises((FileNotFoundError, ValueError), match=text):
        voxserve.Engine(MODELS / name, device="cpu")


def test_a_folder_without_models(tmp_path: Path) -> None:
    with pytest.raises(voxserve.NotFoundError, match="there is no model in") as caught:
        voxserve.Engine(tmp_path, device="cpu")
    assert caught.value.reason == "MODEL_NOT_FOUND"


def test_a_broken_model_tells_its_problems(tmp_path: Path) -> None:
    (tmp_path / "broken" / "1").mkdir(parents=True)
    (tmp_path / "broken" / "1" / "model.textproto").write_text("nodes { name: 'a' }")
    with pytest.raises(
        voxserve.FailedPreconditionError, match='no model could be loaded; model "broken" version 1: '
    ) as caught:
        voxserve.Engine(tmp_path / "broken", device="cpu")
    assert caught.value.reason == "BAD_MODEL"


@pytest.mark.parametrize("device", ["cuda:99", "tpu"])
def test_a_device_that_is_not_there(device: str) -> None:
    with pytest.raises(voxserve.InferenceError, match=device.partition(":")[0]):
        voxserve.Engine(MODELS, device=device)


def test_a_deadline(engine: voxserve.Engine, scan: Any) -> None:
    with pytest.raises(voxserve.DeadlineExceededError):
        engine.segment("minkunet", scan, timeout=1e-6)
    with pytest.raises(ValueError, match="must be positive"):
        engine.segment("minkunet", scan, timeout=0)


def test_a_closed_engine(few: Any) -> None:
    engine = voxserve.Engine(MODELS, device="cpu")
    engine.close()
    engine.close()
    for call in (lambda: engine.infer("minkunet", few), engine.models, lambda: engine.model("minkunet")):
        with pytest.raises(voxserve.FailedPreconditionError, match="was closed"):
            call()


def test_threads_get_the_answers_of_one(few: Any) -> None:
    parts = [few[i::3].copy() for i in range(3)] * 4
    with voxserve.Engine(MODELS, device="cpu", deterministic=True) as engine:
        alone = [engine.infer("minkunet", part, scores=True) for part in parts[:3]]
        with ThreadPoolExecutor(6) as pool:
            together = list(pool.map(lambda part: engine.infer("minkunet", part, scores=True), parts))
    for index, result in enumerate(together):
        same(result, alone[index % 3])


def test_other_threads_run_meanwhile(engine: voxserve.Engine, scan: Any) -> None:
    ticks, done = [0], threading.Event()

    def tick() -> None:
        while not done.is_set():
            ticks[0] += 1
            time.sleep(0.001)

    thread = threading.Thread(target=tick)
    thread.start()
    try:
        before = ticks[0]
        engine.segment("minkunet", scan)
        assert ticks[0] - before > 20  # with the GIL held it would be none
    finally:
        done.set()
        thread.join()


def test_close_waits_for_a_request_that_runs(scan: Any) -> None:
    engine = voxserve.Engine(MODELS, device="cpu")
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(engine.segment, "minkunet", scan)
        time.sleep(0.05)
        engine.close()
        failure = running.exception()
    if failure is None:
        assert running.result().shape == (len(scan),)
    else:  # it had not begun
        assert isinstance(failure, voxserve.FailedPreconditionError)


def test_a_pickled_engine_is_made_anew(engine: voxserve.Engine, few: Any) -> None:
    with pickle.loads(pickle.dumps(engine)) as copy:
        assert repr(copy) == repr(engine)
        assert copy.segment("minkunet", few).tobytes() == engine.segment("minkunet", few).tobytes()


def run_python(program: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False)


PRELUDE = f"""
import os, signal, sys, threading, time
import numpy as np
import voxserve
scan = np.fromfile({str(SCANS[0])!r}, np.float32).reshape(-1, 4)
engine = voxserve.Engine({str(MODELS)!r}, device="cpu")
"""


def test_a_forked_process_is_told_and_ends() -> None:
    done = run_python(
        PRELUDE
        + """
child = os.fork()
if child == 0:
    try:
        engine.infer("minkunet", scan)
    except voxserve.FailedPreconditionError as error:
        print(error.message, flush=True)
        sys.exit(7)
print("child", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), len(engine.segment("minkunet", scan[:9000])))
"""
    )
    assert done.returncode == 0, done.stderr
    assert "belongs to the process that made it" in done.stdout
    assert "child 7 9000" in done.stdout


def test_an_interrupt_ends_a_request() -> None:
    done = run_python(
        PRELUDE
        + """
signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background ignores it
big = np.concatenate([scan + np.float32([i * 200, 0, 0, 0]) for i in range(12)])
threading.Timer(1.0, os.kill, (os.getpid(), signal.SIGINT)).start()
start = time.monotonic()
try:
    engine.infer("minkunet", big)
    print("answered")
except KeyboardInterrupt:
    print("interrupted", flush=True)
os._exit(0)
"""
    )
    assert done.stdout.strip() == "interrupted", done


def test_an_interpreter_ends_with_an_open_engine() -> None:
    done = run_python(PRELUDE + "print(len(engine.segment('minkunet', scan[:5000])))")
    assert (done.returncode, done.stdout.strip(), done.stderr) == (0, "5000", "")


def test_results_are_shared_by_dlpack(engine: voxserve.Engine, few: Any) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    result = engine.infer("minkunet", torch.from_numpy(few), scores=True)
    labels = torch.from_dlpack(result.labels)
    assert labels.data_ptr() == result.labels.ctypes.data
    assert labels.tolist() == engine.segment("minkunet", few).tolist()
    assert torch.from_dlpack(result.scores).shape == result.scores.shape


class OnGpu:
    """What a library's array on a GPU shows of itself, for a machine without one."""

    shape = (4, 4)

    def __dlpack_device__(self) -> tuple[int, int]:
        return 2, 0

    def __dlpack__(self, *, stream: int) -> Any:
        raise AssertionError(f"asked for stream {stream}")


def test_points_on_a_gpu_need_a_build_for_it(engine: voxserve.Engine) -> None:
    if native.has_cuda:
        pytest.skip("this build has CUDA")
    with pytest.raises(voxserve.InferenceError, match="without CUDA; copy them to host memory first"):
        engine.segment("minkunet", OnGpu())


def test_points_on_a_gpu_are_copied_on_a_stream_that_waits(engine: voxserve.Engine, few: Any) -> None:
    cupy = pytest.importorskip("cupy", reason="cupy is not installed")
    if not native.has_cuda:
        pytest.skip("this build is without CUDA")
    with cupy.cuda.Stream(non_blocking=True):
        points = cupy.asarray(few) * 2 / 2
        labels = engine.segment("minkunet", points)
    assert labels.tolist() == engine.segment("minkunet", few).tolist()


def test_the_callers_current_gpu_stays(few: Any) -> None:
    cupy = pytest.importorskip("cupy", reason="cupy is not installed")
    if not native.has_cuda or cupy.cuda.runtime.getDeviceCount() < 2:
        pytest.skip("needs two GPUs and a build for them")
    for mine in (0, 1):
        with cupy.cuda.Device(mine):
            points = cupy.asarray(few)
            with voxserve.Engine(MODELS / "minkunet", device=f"cuda:{1 - mine}") as engine:
                assert cupy.cuda.runtime.getDevice() == mine
                engine.segment("minkunet", few)
                with cupy.cuda.Device(1 - mine):
                    engine.segment("minkunet", points)
                    assert cupy.cuda.runtime.getDevice() == 1 - mine
            assert cupy.cuda.runtime.getDevice() == mine


def test_the_module_has_the_packages_version() -> None:
    assert native.version == (REPOSITORY / "client" / "python" / "VERSION").read_text().strip()


def test_the_module_loads_no_grpc() -> None:
    done = run_python("import voxserve_server._engine; print(open('/proc/self/maps').read())")
    assert "libprotobuf" in done.stdout
    assert "libgrpc" not in done.stdout


def test_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "voxserve_server._engine", None)
    with pytest.raises(ImportError, match=r"pip install 'voxserve\[server\]'"):
        voxserve.Engine(MODELS)


def test_links_stay_when_the_cache_cannot_be_written(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "no-folder"
    file.write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", os.fspath(file))
    with voxserve.Engine(MODELS / "minkunet", device="cpu") as engine:
        assert [info.name for info in engine.models()] == ["minkunet"]
