"""Builds the ROS 2 component (client/ros2) against stand-ins of ROS' headers and the installed client, and runs it on
clouds that rosbags serialised, against a real server. rosbags also reads what the node publishes: so names, order and
types of all members are those of the messages' definitions.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import xml.etree.ElementTree
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from identity_calls import StartServer
from identity_files import Server
from installed_client import ROOT, configure, install, run

import voxserve

PACKAGE = ROOT / "client" / "ros2"
TESTING = ROOT / "tests" / "client" / "ros2"
SCAN = ROOT / "deploy" / "scans" / "pandaset_070.bin"
TYPES = {"f4": 7, "u1": 2, "u2": 4}

# The members of vision_msgs 4 (ROS 2 Humble and newer) and of autoware_perception_msgs.
DEFINITIONS = {
    "vision_msgs/msg/BoundingBox3D": "geometry_msgs/Pose center\ngeometry_msgs/Vector3 size",
    "vision_msgs/msg/ObjectHypothesis": "string class_id\nfloat64 score",
    "vision_msgs/msg/ObjectHypothesisWithPose": "vision_msgs/ObjectHypothesis hypothesis\n"
    "geometry_msgs/PoseWithCovariance pose",
    "vision_msgs/msg/Detection3D": "std_msgs/Header header\nvision_msgs/ObjectHypothesisWithPose[] results\n"
    "vision_msgs/BoundingBox3D bbox\nstring id",
    "vision_msgs/msg/Detection3DArray": "std_msgs/Header header\nvision_msgs/Detection3D[] detections",
    "autoware_perception_msgs/msg/ObjectClassification": "uint8 label\nfloat32 probability",
    "autoware_perception_msgs/msg/DetectedObjectKinematics": "geometry_msgs/PoseWithCovariance pose_with_covariance\n"
    "bool has_position_covariance\nuint8 orientation_availability\n"
    "geometry_msgs/TwistWithCovariance twist_with_covariance\nbool has_twist\nbool has_twist_covariance",
    "autoware_perception_msgs/msg/Shape": "uint8 type\ngeometry_msgs/Polygon footprint\n"
    "geometry_msgs/Vector3 dimensions",
    "autoware_perception_msgs/msg/DetectedObject": "float32 existence_probability\n"
    "autoware_perception_msgs/ObjectClassification[] classification\n"
    "autoware_perception_msgs/DetectedObjectKinematics kinematics\nautoware_perception_msgs/Shape shape",
    "autoware_perception_msgs/msg/DetectedObjects": "std_msgs/Header header\n"
    "autoware_perception_msgs/DetectedObject[] objects",
}


@pytest.fixture(scope="module")
def types() -> Any:
    typesys = pytest.importorskip("rosbags.typesys", reason="rosbags is not installed")
    store = typesys.get_typestore(typesys.Stores.ROS2_HUMBLE)
    for name, text in DEFINITIONS.items():
        store.register(typesys.get_types_from_msg(text, name))
    return store


@pytest.fixture(scope="module")
def server(start: StartServer) -> Server:
    return start()


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return install(tmp_path_factory.mktemp("installed"))


def prefixes(library: Path) -> dict[str, str]:
    prefix = next(folder for folder in library.parents if (folder / "include").is_dir())
    return {"CMAKE_PREFIX_PATH": f"{prefix}:{TESTING / 'stubs'}"}


@pytest.fixture(scope="module")
def replay(library: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program that runs the component."""
    build = tmp_path_factory.mktemp("ros2")
    configure(PACKAGE, build, environment=prefixes(library))
    run("cmake", "--build", build)
    flags = ["-std=c++20", f"-I{TESTING / 'stubs' / 'include'}", f"-L{build}", "-lvoxserve_node"]
    rpaths = [f"-Wl,-rpath,{build}", f"-Wl,-rpath,{library.parent}", f"-Wl,-rpath-link,{library.parent}"]
    run("c++", TESTING / "replay.cc", "-o", build / "replay", *flags, *rpaths)
    return build / "replay"


class Bench:
    """Runs the component on messages."""

    def __init__(self, replay: Path, types: Any, folder: Path, server: Server) -> None:
        self._replay, self._types, self._folder, self._server = replay, types, folder, server

    def cloud(self, points: np.ndarray, **changes: Any) -> Any:
        """Returns a PointCloud2 of a structured array of one or two axes, as sensors send it."""
        kind = self._types.types
        dtype = points.dtype
        assert dtype.fields is not None
        fields = [
            kind["sensor_msgs/msg/PointField"](name=name, offset=offset, datatype=TYPES[part.str[1:]], count=1)
            for name, (part, offset, *_) in dtype.fields.items()
        ]
        stamp = kind["builtin_interfaces/msg/Time"](sec=1_700_000_000, nanosec=123_456_789)
        height, width = points.shape if points.ndim == 2 else (1, len(points))
        values = {
            "header": kind["std_msgs/msg/Header"](stamp=stamp, frame_id="lidar_top"),
            "height": height,
            "width": width,
            "fields": fields,
            "is_bigendian": False,
            "point_step": dtype.itemsize,
            "row_step": dtype.itemsize * width,
            "data": np.frombuffer(points.tobytes(), dtype=np.uint8),
            "is_dense": True,
        }
        return kind["sensor_msgs/msg/PointCloud2"](**{**values, **changes})

    def run(self, *clouds: Any, parameters: list[str]) -> SimpleNamespace:
        """Returns the messages that the node published, in lists by the kind of output."""
        out = self._folder / f"run{len(list(self._folder.iterdir()))}"
        out.mkdir()
        files = []
        for i, cloud in enumerate(clouds):
            files.append(out / f"in{i}.cdr")
            files[-1].write_bytes(bytes(self._types.serialize_cdr(cloud, "sensor_msgs/msg/PointCloud2")))
        # A server that "parameters" names comes later, and so counts.
        run(self._replay, out, f"--address={self._server.address}", *parameters, *files)
        kinds = {
            "labels": "sensor_msgs/msg/PointCloud2",
            "detections": "vision_msgs/msg/Detection3DArray",
            "objects": "autoware_perception_msgs/msg/DetectedObjects",
            "diagnostics": "diagnostic_msgs/msg/DiagnosticArray",
        }
        return SimpleNamespace(
            **{
                name: [
                    self._types.deserialize_cdr(file.read_bytes(), kind) for file in sorted(out.glob(f"{name}.*.cdr"))
                ]
                for name, kind in kinds.items()
            }
        )


@pytest.fixture
def bench(replay: Path, types: Any, tmp_path: Path, server: Server) -> Bench:
    return Bench(replay, types, tmp_path, server)


@pytest.fixture(scope="module")
def client(server: Server) -> Iterator[voxserve.Client]:
    with voxserve.Client(server.address) as made:
        yield made


def scan() -> np.ndarray:
    return np.fromfile(SCAN, dtype=np.float32).reshape(-1, 4)


def points_of(message: Any) -> np.ndarray:
    """Returns the points of a PointCloud2 as a structured array."""
    names = {number: kind for kind, number in TYPES.items()}
    dtype = np.dtype(
        {
            "names": [field.name for field in message.fields],
            "formats": [f"<{names[field.datatype]}" for field in message.fields],
            "offsets": [field.offset for field in message.fields],
            "itemsize": message.point_step,
        }
    )
    assert message.row_step == message.width * message.point_step
    return np.frombuffer(message.data.tobytes(), dtype=dtype)


def xyzi(points: np.ndarray, intensity: str = "f4") -> np.ndarray:
    out = np.zeros(len(points), dtype=[("x", "<f4"), ("y", "<f4"), ("z", "<f4"), ("intensity", f"<{intensity}")])
    for i, name in enumerate(out.dtype.names or ()):
        out[name] = points[:, i]
    return out


def test_a_labelled_cloud_has_the_servers_labels_and_the_classes_colours(bench: Bench, client: voxserve.Client) -> None:
    points = scan()
    (message,) = bench.run(bench.cloud(xyzi(points)), parameters=["--labels_model=minkunet"]).labels
    assert message.header.frame_id == "lidar_top"
    assert (message.header.stamp.sec, message.header.stamp.nanosec) == (1_700_000_000, 123_456_789)
    assert [field.name for field in message.fields] == ["x", "y", "z", "intensity", "rgb", "label"]
    out = points_of(message)
    for i, name in enumerate(("x", "y", "z", "intensity")):
        np.testing.assert_array_equal(out[name], points[:, i])
    labels = client.segment("minkunet", points)
    np.testing.assert_array_equal(out["label"], labels)
    (model,) = [found for found in client.models() if found.name == "minkunet"]
    colors = {info.id: info.color[0] << 16 | info.color[1] << 8 | info.color[2] for info in model.classes}
    expected = np.array([colors.get(int(label), 0) for label in labels], dtype=np.uint32)
    np.testing.assert_array_equal(out["rgb"].view(np.uint32), expected)
    assert len(set(expected.tolist())) > 2


@pytest.mark.parametrize("name", ["intensity", "Intensity"])
def test_an_intensity_of_bytes_is_scaled_by_its_type(bench: Bench, client: voxserve.Client, name: str) -> None:
    points = scan()
    points[:, 3] = np.round(points[:, 3] * 255)
    sent = xyzi(points, "u1")
    sent.dtype.names = ("x", "y", "z", name)
    (message,) = bench.run(bench.cloud(sent), parameters=["--labels_model=minkunet"]).labels
    points[:, 3] /= 255
    labels = client.segment("minkunet", points)
    agreeing = np.mean(points_of(message)["label"] == labels)
    assert agreeing > 0.999, "scale * byte and byte / 255 differ in the last bit"


def test_fields_get_other_names_and_rows_keep_their_padding_out(bench: Bench, client: voxserve.Client) -> None:
    points = scan()[:20_000]
    renamed = np.zeros(
        (100, 201), dtype=[("label", "u1"), ("x", "<f4"), ("y", "<f4"), ("z", "<f4"), ("i", "<f4"), ("ring", "<u2")]
    )
    for i, name in enumerate(("x", "y", "z", "i")):
        renamed[name][:, :200] = points[:, i].reshape(100, 200)
    renamed["ring"] = 7
    cloud = bench.cloud(renamed, width=200)  # the last point of each row is padding
    parameters = ["--labels_model=minkunet", "--rename_fields=[i=intensity]", "--publish_colors=false"]
    (message,) = bench.run(cloud, parameters=parameters).labels
    assert (message.height, message.width) == (100, 200)
    assert [field.name for field in message.fields] == ["x", "y", "z", "i", "ring", "label"]
    out = points_of(message)
    np.testing.assert_array_equal(out["label"], client.segment("minkunet", points))
    np.testing.assert_array_equal(out["i"], points[:, 3])
    assert set(out["ring"].tolist()) == {7}


def test_boxes_become_detections_and_objects(bench: Bench, client: voxserve.Client) -> None:
    points = scan()
    out = bench.run(bench.cloud(xyzi(points)), parameters=["--boxes_model=centerpoint"])
    found = client.detect("centerpoint", points)
    (array,), (objects,) = out.detections, out.objects
    assert len(found) > 3
    assert len(array.detections) == len(objects.objects) == len(found)
    assert array.header.frame_id == objects.header.frame_id == "lidar_top"
    numbers = {"car": 1, "truck": 2, "construction-vehicle": 2, "pedestrian": 7, "traffic-cone": 0}
    for name, box, detection, item in zip(
        found.names, found.structured(), array.detections, objects.objects, strict=True
    ):
        (result,) = detection.results
        assert result.hypothesis.class_id == name
        assert result.hypothesis.score == pytest.approx(box["score"])
        for pose in (detection.bbox.center, result.pose.pose, item.kinematics.pose_with_covariance.pose):
            assert (pose.position.x, pose.position.y, pose.position.z) == (box["x"], box["y"], box["z"])
            yaw = 2 * np.arctan2(pose.orientation.z, pose.orientation.w)
            assert np.cos(yaw - box["yaw"]) == pytest.approx(1, abs=1e-6)
            assert (pose.orientation.x, pose.orientation.y) == (0, 0)
        for size in (detection.bbox.size, item.shape.dimensions):
            assert (size.x, size.y, size.z) == (box["length"], box["width"], box["height"])
        assert item.existence_probability == box["score"]
        (classification,) = item.classification
        assert classification.label == numbers[name]
        assert item.kinematics.orientation_availability == 2
        if not item.kinematics.has_twist:
            continue
        velocity = item.kinematics.twist_with_covariance.twist.linear
        turned = complex(velocity.x, velocity.y) * np.exp(1j * float(box["yaw"]))  # back into the cloud's axes
        assert (turned.real, turned.imag) == pytest.approx((box["velocity_x"], box["velocity_y"]), abs=1e-4)
    assert any(item.kinematics.has_twist for item in objects.objects) == bool(np.any(found.velocities))


def test_diagnostics_count_frames_and_name_what_is_wrong(bench: Bench) -> None:
    good = bench.cloud(xyzi(scan()[:1000]))
    short = bench.cloud(xyzi(scan()[:1000]), data=np.zeros(999, dtype=np.uint8))

    def status(*clouds: Any, parameters: list[str]) -> tuple[Any, dict[str, str]]:
        (array,) = bench.run(*clouds, parameters=parameters).diagnostics
        (found,) = array.status
        return found, {pair.key: pair.value for pair in found.values}

    ok, values = status(good, good, parameters=["--labels_model=minkunet"])
    assert (ok.level, ok.message, ok.name) == (0, "answers", "voxserve: minkunet")
    assert (values["frames"], values["answers"], values["failures"]) == ("2", "2", "0")
    assert float(values["latency_ms"]) > 0

    bad, values = status(short, parameters=["--labels_model=minkunet", "--wait=false"])
    assert bad.level == 1
    assert "999 bytes" in bad.message
    assert values["failures: INVALID_ARGUMENT"] == "1"

    bright = xyzi(scan())
    bright["intensity"] *= 255
    warned, _ = status(bench.cloud(bright), parameters=["--labels_model=minkunet"])
    assert warned.level == 1
    assert "intensity" in warned.message

    missing, _ = status(parameters=["--labels_model=no-such-model", "--wait=false"])
    assert missing.level == 2
    assert "MODEL_NOT_FOUND" in missing.message

    wrong, _ = status(parameters=["--labels_model=centerpoint", "--wait=false"])
    assert wrong.level == 2
    assert "has no labels" in wrong.message

    alone, _ = status(good, parameters=["--labels_model=minkunet", "--address=127.0.0.1:1", "--wait=false"])
    assert alone.level == 2
    assert "NO_SERVER" in alone.message


@pytest.mark.parametrize(
    ("parameters", "words"),
    [
        ([], "labels_model and boxes_model are empty"),
        (["--labels_model=minkunet", "--rename_fields=[i]"], "i=intensity"),
        (["--labels_model=minkunet", "--intensity_scale=-1.0"], "intensity_scale"),
        (["--labels_model=minkunet", "--timeout_s=0.0"], "timeout_s"),
        (["--labels_model=minkunet", "--timeout_s=-1.0"], "timeout_s is -1"),
        (["--labels_model=minkunet", "--frame_timeout_s=-0.1"], "frame_timeout_s is -0.1"),
        (["--labels_model=minkunet", "--reopen_for_s=-1.0"], "reopen_for_s is -1"),
        (["--labels_model=minkunet", "--tls_ca=/nowhere.pem"], "tls_ca"),
    ],
)
def test_a_bad_parameter_is_refused_with_its_name(
    replay: Path, server: Server, tmp_path: Path, parameters: list[str], words: str
) -> None:
    command = [str(replay), str(tmp_path), f"--address={server.address}", *parameters]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert words in done.stderr


def test_colcon_builds_the_package(library: Path, tmp_path: Path) -> None:
    colcon = shutil.which("colcon") or shutil.which("colcon", path=str(Path(sys.executable).parent))
    if colcon is None:
        pytest.skip("colcon is not installed (pip install colcon-common-extensions catkin_pkg)")
    bases = ["--base-paths", PACKAGE, "--build-base", tmp_path / "build", "--install-base", tmp_path / "install"]
    run(
        colcon,
        "--log-base",
        tmp_path / "log",
        "build",
        *bases,
        "--cmake-args",
        "-G",
        "Ninja",
        environment=prefixes(library),
    )
    installed = tmp_path / "install" / "voxserve_ros"
    assert (installed / "lib" / "libvoxserve_node.so").exists()
    for name in ("config/voxserve.yaml", "launch/voxserve.launch.py", "layouts/voxserve.rviz"):
        assert (installed / "share" / "voxserve_ros" / name).exists()


def test_files_name_what_the_node_has() -> None:
    yaml = pytest.importorskip("yaml")
    source = (PACKAGE / "src" / "voxserve_node.cc").read_text()
    parameters = yaml.safe_load((PACKAGE / "config" / "voxserve.yaml").read_text())["/**"]["ros__parameters"]
    for name in parameters:
        assert f'("{name}"' in source
    readme = (PACKAGE / "README.md").read_text()
    for name in [*parameters, "tls_ca", "tls_certificate", "tls_key", "token"]:
        assert f"`{name}`" in readme
    topics = ("labels", "detections")
    rviz = yaml.safe_load((PACKAGE / "layouts" / "voxserve.rviz").read_text())["Visualization Manager"]["Displays"]
    assert {display["Topic"]["Value"] for display in rviz if "Topic" in display} == {
        f"/voxserve/output/{topic}" for topic in topics
    }
    foxglove = json.loads((PACKAGE / "layouts" / "voxserve.foxglove.json").read_text())
    assert set(foxglove["configById"]["3D!voxserve"]["topics"]) == {f"/voxserve/output/{topic}" for topic in topics}
    package = xml.etree.ElementTree.parse(PACKAGE / "package.xml").getroot()
    assert package.findtext("version") == (ROOT / "client" / "python" / "VERSION").read_text().strip()
    found = {line.split("(")[1].split()[0] for line in (PACKAGE / "CMakeLists.txt").read_text().splitlines()
             if line.startswith("find_package(") and "REQUIRED" in line} - {"voxserve"}  # fmt: skip
    wanted = {item.text for item in package if item.tag in ("depend", "buildtool_depend")}
    assert found == wanted
