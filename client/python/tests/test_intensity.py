"""Tests the unit of intensities: integers of ROS have the one of their type, and others are warned of."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from conftest import FakeServer, add_warning, answer

import voxserve
from voxserve import feature_warning, readers, wire
from voxserve.cli.main import main
from voxserve.point_cloud import PointCloud, as_cloud
from voxserve.results import FeatureInfo, PointCounts

_NUMBERS = {"i1": 1, "u1": 2, "i2": 3, "u2": 4, "i4": 5, "u4": 6, "f4": 7, "f8": 8}


def ros_message(code: str, name: str = "intensity", largest: float = 100.0) -> Any:
    """Returns a PointCloud2 whose last field has this type and name, and the values 0 to `largest`."""
    points = np.zeros(5, [("x", "<f4"), ("y", "<f4"), ("z", "<f4"), (name, f"<{code}")])
    points[name] = np.linspace(0, largest, 5)
    fields = [SimpleNamespace(name=key, offset=4 * i, datatype=7, count=1) for i, key in enumerate("xyz")]
    fields.append(SimpleNamespace(name=name, offset=12, datatype=_NUMBERS[code], count=1))
    step = points.itemsize
    return SimpleNamespace(width=5, height=1, fields=fields, is_bigendian=False, point_step=step, row_step=5 * step,
                           data=points.tobytes(), is_dense=True)  # fmt: skip


@pytest.mark.parametrize("name", ["intensity", "reflectivity"])
@pytest.mark.parametrize(("code", "largest"), [("u1", 255), ("u2", 65535)])
def test_unsigned_intensities_of_ros_are_shares_of_their_largest_value(code: str, largest: float, name: str) -> None:
    cloud = as_cloud(ros_message(code, name, largest))
    np.testing.assert_allclose(cloud.values(name), np.linspace(0, largest, 5).astype(int) / largest, rtol=1e-6)
    np.testing.assert_array_equal(cloud.scaled({name: 1}).values(name), np.linspace(0, largest, 5).astype(int))
    described = "x:f32,y:f32,z:f32," + f"{name}:{'u8' if code == 'u1' else 'u16'}*0.5"
    assert as_cloud(ros_message(code, name, largest), described).values(name)[-1] == largest / 2


def test_an_intensity_is_known_by_its_name_in_any_case() -> None:
    cloud = as_cloud(ros_message("u1", "Intensity", 255))
    np.testing.assert_allclose(cloud.values("intensity"), [0, 63 / 255, 127 / 255, 191 / 255, 1], rtol=1e-6)
    described = as_cloud(ros_message("u1", "Intensity"), "intensity:u8*0.5")
    assert described.values("intensity").tolist() == [0, 12.5, 25, 37.5, 50]
    renamed = as_cloud(ros_message("u1", "signal"), "Intensity=signal*0.5")
    assert renamed.values("intensity").tolist() == [0, 12.5, 25, 37.5, 50]


@pytest.mark.parametrize(
    ("code", "name"),
    [("f4", "intensity"), ("f8", "intensity"), ("i1", "intensity"), ("i2", "intensity"), ("i4", "intensity"),
     ("u4", "intensity"), ("u1", "ring"), ("u2", "ring"), ("u2", "x2")],
)  # fmt: skip
def test_other_fields_are_as_they_are(code: str, name: str) -> None:
    assert as_cloud(ros_message(code, name)).values(name).tolist() == [0, 25, 50, 75, 100]


def test_the_new_name_of_a_ros_field_says_whether_it_is_an_intensity() -> None:
    other = as_cloud(ros_message("u1"), "strength=intensity")
    assert other.values("strength").tolist() == [0, 25, 50, 75, 100]
    named = as_cloud(ros_message("u1", "signal"), "intensity=signal")
    np.testing.assert_allclose(named.values("intensity"), np.array([0, 25, 50, 75, 100]) / 255, rtol=1e-6)


def test_the_server_gets_the_scale(server: FakeServer) -> None:
    with voxserve.Client(server.address) as client:
        client.segment("minkunet", ros_message("u1"))
        client.segment("minkunet", ros_message("u1"), scales={"intensity": 0.5})
        client.segment("minkunet", ros_message("u1"), scales={"intensity": 1})
    scales = [request.cloud.fields[3] for request in server.requests]
    assert [field.scale if field.HasField("scale") else 1 for field in scales] == [1 / 255, 0.5, 1]


def bag_of(path: Path, code: str, largest: float, num_clouds: int = 3, name: str = "intensity") -> Path:
    """Writes a bag whose clouds have intensities of this type, from 0 to `largest`; the first cloud is empty."""
    bag_files = pytest.importorskip("bag_files")
    maker = bag_files.Maker(2)
    clouds = []
    for index in range(num_clouds):
        message = ros_message(code, name, largest)
        number = 0 if index == 0 else 5
        fields = [maker.types["sensor_msgs/msg/PointField"](**vars(field)) for field in message.fields]
        clouds.append(maker.cloud(
            index, np.zeros((5, 4), np.float32), fields=fields, width=number, point_step=message.point_step, row_step=0,
            data=np.frombuffer(message.data if number else b"", np.uint8)))  # fmt: skip
    written: Path = bag_files.write(path, [], clouds)
    return written


def label(server: FakeServer, bag: Path, *more: str) -> int:
    from voxserve.bag import command

    save = str(bag.parent / "out.mcap")
    return command.main([str(bag), "--model", "minkunet", "--save", save, "--address", server.address, *more])


@pytest.mark.parametrize("name", ["intensity", "Intensity"])
def test_a_bag_of_integers_is_scaled_and_says_so_once(
    server: FakeServer, tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    assert label(server, bag_of(tmp_path / "drive.mcap", "u1", 255, name=name)) == 0
    told = f"voxserve.bag: {name} is u8, whose 255 counts as 1; --scale {name}=FACTOR says otherwise\n"
    assert capsys.readouterr().err == told
    assert [request.frame.cloud.fields[3].scale for request in server.requests[2:]] == [1 / 255] * 2


def test_scale_says_otherwise(server: FakeServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bag = bag_of(tmp_path / "drive.mcap", "u1", 1)
    assert label(server, bag, "--scale", "intensity=1") == 0
    assert capsys.readouterr().err == ""
    assert not server.requests[2].frame.cloud.fields[3].HasField("scale")


@pytest.mark.parametrize(("code", "more"), [("f4", []), ("u4", []), ("u1", ["--scale", "intensity=1"])])
def test_a_bag_of_too_large_intensities_is_warned_of_once(
    code: str, more: list[str], server: FakeServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert label(server, bag_of(tmp_path / "drive.mcap", code, 200), *more) == 0
    error = capsys.readouterr().err
    assert error == (
        "voxserve.bag: warning: intensities of message 1 reach 200, but minkunet reads 0..1; scale them with "
        "--scale intensity=0.00392 if they are 0 to 255\n"
    )
    assert label(server, bag_of(tmp_path / "other.mcap", "f4", 200), "--scale", "intensity=0.00392") == 0
    assert capsys.readouterr().err == ""


def test_a_part_from_before_is_refused(
    server: FakeServer, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its clouds were labelled with other values."""
    from test_bag import breaking

    from voxserve.bag import command

    bag = bag_of(tmp_path / "drive.mcap", "u1", 255)
    whole: Callable[..., Any] = server.streams
    server.streams = breaking(2)
    job_of = command.job_of
    monkeypatch.setattr(command, "job_of", lambda integers, **rest: job_of(**rest))
    assert label(server, bag) == 1
    monkeypatch.undo()
    server.streams = whole
    assert label(server, bag) == 1
    assert "was begun with other settings (integers: None, now by type)" in capsys.readouterr().err


def test_view_warns_too(server: FakeServer, tmp_path: Path, capsys: pytest.CaptureFixture[str],
                        monkeypatch: pytest.MonkeyPatch) -> None:  # fmt: skip
    from voxserve.view import command

    monkeypatch.setattr(command, "_show", lambda options, classes, scans: len(list(scans)))
    bag = bag_of(tmp_path / "drive.mcap", "f4", 200)
    assert command.main([str(bag), "--model", "minkunet", "--address", server.address]) == 0
    assert "voxserve.view: warning: intensities of message 1 reach 200" in capsys.readouterr().err
    points = np.full((4, 4), 80, np.float32)
    points.tofile(tmp_path / "scan.bin")
    arguments = [str(tmp_path / "scan.bin"), "--model", "minkunet", "--address", server.address]
    assert command.main(arguments) == 0
    assert "scan.bin reach 80, but minkunet reads 0..1" in capsys.readouterr().err
    assert command.main([*arguments, "--scale", "intensity=0.01"]) == 0
    assert capsys.readouterr().err == ""


@pytest.fixture
def untold(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forgets what this process has been warned of."""
    monkeypatch.setattr(feature_warning, "_told", set())


def test_an_answer_has_the_servers_warnings(server: FakeServer, untold: None) -> None:
    points = np.full((4, 4), 200, np.float32)
    with voxserve.Client(server.address) as client:
        with pytest.warns(voxserve.UnitWarning, match="intensity is 0 to 200, but the model was trained on 0 to 1"):
            found = client.infer("ranged", points)
        client.segment("ranged", points)  # it is told once: here a second warning would be an error
        assert found.warnings == (voxserve.FeatureWarning("intensity", 0, 1, 0, 200, 100, 90),)
        assert client.infer("minkunet", points).warnings == ()
        assert [feature.range for feature in client.model("ranged").features] == [None, (0, 1)]
        assert [feature.range for feature in client.model("minkunet").features] == [None, None]


def test_segment_alone_warns_too(server: FakeServer, untold: None) -> None:
    with voxserve.Client(server.address) as client, pytest.warns(voxserve.UnitWarning, match="scales={'intensity'"):
        client.segment("ranged", np.full((4, 4), 200, np.float32))


def test_a_command_shows_the_servers_warning_once(
    server: FakeServer, untold: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    scans = [tmp_path / "a.bin", tmp_path / "b.bin"]
    for scan in scans:
        np.full((4, 4), 200, np.float32).tofile(scan)
    assert main(["infer", "--model", "ranged", *map(str, scans), "--address", server.address]) == 0
    lines = [line for line in capsys.readouterr().err.splitlines() if "warning" in line]
    assert lines == [
        "voxserve: warning: intensity is 0 to 200, but the model was trained on 0 to 1 (ranged); the answer is "
        "likely wrong; scale it with --fields intensity=intensity*FACTOR, e.g. 0.00392 if 255 must be 1"
    ]


def test_a_bag_shows_the_servers_warning_once(
    server: FakeServer, untold: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def warning(requests: Any, _context: Any) -> Any:
        next(requests)
        for request in requests:
            response = wire.InferResponse(model="ranged", version=3)
            response.segmentation.bytes_per_label, response.segmentation.num_classes = 1, 2
            response.segmentation.labels = bytes(request.frame.cloud.num_points)
            add_warning(response)
            yield answer(request, response=response)

    from voxserve.bag import command

    server.streams = warning
    bag = bag_of(tmp_path / "drive.mcap", "f4", 200)
    arguments = ["--model", "ranged", "--save", str(tmp_path / "out.mcap"), "--address", server.address]
    assert command.main([str(bag), *arguments]) == 0
    assert capsys.readouterr().err == (
        "voxserve.bag: warning: intensity is 0 to 200, but the model was trained on 0 to 1 (ranged); the answer "
        "is likely wrong; scale it with --scale intensity=FACTOR, e.g. 0.00392 if 255 must be 1\n"
    )


def test_nearly_all_points_out_of_range_are_warned_of_once(untold: None) -> None:
    for counts in (PointCounts(60, 0, 200, 0, 5), PointCounts(0, 500, 0, 0, 0), PointCounts(0, 0, 99, 0, 0)):
        feature_warning.tell_of_range("m", counts)
    with pytest.warns(voxserve.OutOfRangeWarning, match=r"^190 of 200 points lie outside of the range that m accepts"):
        feature_warning.tell_of_range("m", PointCounts(10, 0, 190, 0, 10))
    feature_warning.tell_of_range("m", PointCounts(10, 0, 190, 0, 10))  # a second warning would be an error


def test_scores_that_are_not_finite_are_warned_of_once(untold: None) -> None:
    feature_warning.tell_of_not_finite("m", PointCounts(60, 0, 0, 0, 5))
    expected = r"^m has NaN or infinite values for 1 of 60 points, which get no label; .*PRECISION_BFLOAT16"
    counts = PointCounts(60, 0, 0, 0, 5, not_finite=1)
    with pytest.warns(voxserve.NotFiniteWarning, match=expected):
        feature_warning.tell_of_not_finite("m", counts)
    feature_warning.tell_of_not_finite("m", counts)  # a second warning would be an error


def test_boxes_that_are_not_finite_are_warned_of(untold: None) -> None:
    with pytest.warns(voxserve.NotFiniteWarning, match="^m has NaN or infinite values in 7 candidates of boxes"):
        feature_warning.tell_of_not_finite("m", PointCounts(60, 0, 0, 0, 5, boxes_not_finite=7))
    expected = r"^n has NaN or infinite values for 2 of 60 points, which get no label, and in 7 candidates of boxes"
    with pytest.warns(voxserve.NotFiniteWarning, match=expected):
        feature_warning.tell_of_not_finite("n", PointCounts(60, 0, 0, 0, 5, not_finite=2, boxes_not_finite=7))


def whole(name: str, kind: Any, largest: int, number: int = 200) -> dict[str, Any]:
    return {**dict.fromkeys("xyz", np.zeros(number, np.float32)), name: np.linspace(0, largest, number).astype(kind)}


@pytest.mark.parametrize("is_stream", [False, True])
def test_intensities_of_8_bits_in_uint16_are_warned_of_once(server: FakeServer, untold: None, is_stream: bool) -> None:
    narrow = PointCloud.from_columns(whole("Intensity", np.uint16, 255)).with_shares()

    def send(client: voxserve.Client, cloud: PointCloud, **more: Any) -> None:
        if is_stream:
            with client.stream("minkunet", **more) as stream:
                stream.send(1, cloud)
                stream.close_sends()
                assert [result.error for result in stream] == [None]
        else:
            client.segment("minkunet", cloud, **more)

    with voxserve.Client(server.address) as client:
        send(client, narrow, scales={"intensity": 1 / 255})
        # The caller says the scale that the type has.
        send(client, narrow, scales={"intensity": 1 / 65535})
        send(client, narrow, fields=f"intensity=Intensity*{1 / 65535!r}")
        send(client, PointCloud.from_columns(whole("reflectance", np.uint16, 255)),
             fields=f"intensity=reflectance*{1 / 65535!r}")  # fmt: skip
        send(client, PointCloud.from_columns(whole("intensity", np.uint16, 0)).with_shares())
        with pytest.warns(voxserve.UnitWarning, match=r"Intensity is uint16, .* no value is above 255 \(minkunet\)"):
            send(client, narrow)
        send(client, narrow)  # a second warning would be an error


def test_shares_in_scans_like_those_of_nuscenes_are_warned_of(
    server: FakeServer, untold: None, tmp_path: Path
) -> None:  # fmt: skip
    def scan(largest: float) -> PointCloud:
        rows = np.zeros((200, 5), np.float32)
        rows[:, 3] = np.linspace(0, largest, 200)
        rows[0, 3] = np.nan
        rows.tofile(tmp_path / "a.pcd.bin")
        return voxserve.read(tmp_path / "a.pcd.bin")

    with voxserve.Client(server.address) as client:
        client.segment("minkunet", scan(1), scales={"intensity": 1})
        client.segment("other", scan(255))
        with pytest.warns(voxserve.UnitWarning, match="intensity is float32, whose 255 counts as 1, .* above 1 "):
            client.segment("minkunet", scan(1))


def _write_shares(path: Path) -> None:
    rows = np.zeros((200, 5), np.float32)
    rows[:, 3] = np.linspace(0, 1, 200)
    rows.tofile(path)


def _write_las(path: Path) -> None:
    laspy = pytest.importorskip("laspy")
    las = laspy.LasData(laspy.LasHeader(point_format=0, version="1.2"))
    las.x = las.y = las.z = np.arange(200.0)
    las.intensity = np.arange(200, dtype=np.uint16)
    las.write(path)


@pytest.mark.parametrize(
    ("command", "name", "write", "advice", "scale"),
    [
        ("infer", "a.pcd.bin", _write_shares, "--fields intensity=intensity*1", 1),
        ("infer", "a.las", _write_las, "--fields intensity=intensity*0.00392156863", 0.00392156863),
        ("view", "a.pcd.bin", _write_shares, "--scale intensity=1", 1),
    ],
)
def test_the_advice_of_a_command_is_of_use(
    server: FakeServer, untold: None, tmp_path: Path, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch, command: str, name: str, write: Callable[[Path], None], advice: str, scale: float
) -> None:  # fmt: skip
    from voxserve.view import command as view

    def run(*more: str) -> tuple[str, Any]:
        run_command = view.main if command == "view" else main
        words = ["--model", "minkunet", "--address", server.address, *more, str(tmp_path / name)]
        assert run_command(words if command == "view" else [command, *words]) == 0
        return capsys.readouterr().err, server.requests[-1].cloud

    monkeypatch.setattr(view, "_show", lambda options, classes, scans: len(list(scans)))
    write(tmp_path / name)
    error, before = run()
    assert error.count("warning") == 1
    assert error.rstrip().endswith(f"is the largest; scale it with {advice}")
    feature_warning._told.clear()
    error, after = run(*advice.split())
    assert error == ""
    assert (after.num_points, after.point_step) == (before.num_points, before.point_step) == (200, before.point_step)
    assert [field.name for field in after.fields] == [field.name for field in before.fields]
    fields = [field for field in after.fields if field.name == "intensity"]
    assert [field.scale or 1 for field in fields] == [scale]


def test_a_scale_that_the_command_line_says_is_not_doubted(
    server: FakeServer, untold: None, tmp_path: Path, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    from voxserve.view import command

    monkeypatch.setattr(command, "_show", lambda options, classes, scans: len(list(scans)))
    _write_shares(tmp_path / "a.pcd.bin")
    arguments = ["--model", "minkunet", "--address", server.address, str(tmp_path / "a.pcd.bin")]
    assert main(["infer", *arguments, "--fields", readers.NUSCENES_LAYOUT]) == 0
    feature_warning._told.clear()
    assert command.main([*arguments, "--fields", "intensity=intensity*0.00392156862745098"]) == 0
    feature_warning._told.clear()
    assert command.main([*arguments, "--scale", "intensity=0.00392156862745098"]) == 0
    assert "warning" not in capsys.readouterr().err
    assert server.requests[-1].cloud.fields[3].scale == 1 / 255


@pytest.mark.parametrize(("read", "fields", "is_told"), [
    ((), "", True), (("x", "intensity"), "", True), (("x", "intensity"), "intensity=Intensity", True),
    (("x", "ring"), "", False), ((), "intensity=Intensity*2", False),
])  # fmt: skip
def test_bits_are_told_of_where_a_model_reads_intensity_and_nobody_says_its_scale(
    untold: None, recwarn: pytest.WarningsRecorder, read: tuple[str, ...], fields: str, is_told: bool
) -> None:
    cloud = PointCloud.from_columns(whole("Intensity", np.uint16, 255)).with_shares()
    feature_warning.settle_bits("m", [FeatureInfo(name, "", None) for name in read], fields)
    feature_warning.tell_of_bits("m", cloud)
    assert len(recwarn) == is_told


def test_a_cloud_of_few_points_is_not_looked_through(untold: None, monkeypatch: pytest.MonkeyPatch) -> None:
    cloud = PointCloud.from_columns(whole("intensity", np.uint16, 255, number=99)).with_shares()
    monkeypatch.setattr(PointCloud, "values", lambda *_: pytest.fail("the values are read"))
    feature_warning.tell_of_bits("m", cloud)


def test_a_unit_warning_can_be_pickled() -> None:
    warning = voxserve.UnitWarning("intensity is wrong", "intensity", "0.5")
    assert str(pickle.loads(pickle.dumps(warning))) == str(warning)
    assert str(warning) == "intensity is wrong; scale it with scales={'intensity': 0.5}"
    assert str(voxserve.UnitWarning("intensity is wrong")) == "intensity is wrong"


@pytest.mark.parametrize(
    "cloud",
    [
        whole("intensity", np.uint16, 256),
        whole("intensity", np.uint8, 255),
        whole("intensity", np.uint16, 255, number=99),
        whole("reflectivity", np.uint16, 255),
    ],
)
def test_other_intensities_are_not_warned_of(server: FakeServer, untold: None, cloud: dict[str, Any]) -> None:
    with voxserve.Client(server.address) as client:
        client.segment("minkunet", PointCloud.from_columns(cloud).with_shares())
