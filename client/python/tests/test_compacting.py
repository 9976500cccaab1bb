"""Clouds of 16-bit values: what they decode to, what stays as it is, and what the server makes of them."""

from __future__ import annotations

import contextlib
import os
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import REPOSITORY, FakeServer, ServerAddress

import voxserve
from voxserve.cli.main import main
from voxserve.compacting import COARSEST_STEP, CompactWarning, compact, compact_or_warn
from voxserve.field_spec import Field
from voxserve.point_cloud import PointCloud

RNG = np.random.default_rng(5)


def decoded(cloud: PointCloud, name: str, code: str) -> Any:
    """Returns raw * scale + shift of every point, read by slicing bytes."""
    own = next(f for f in cloud.fields if f.name == name)
    table = np.frombuffer(bytes(cloud.data), np.uint8).reshape(cloud.num_points, cloud.point_step)
    size = np.dtype(code).itemsize
    raw = np.ascontiguousarray(table[:, own.offset : own.offset + size]).view(code)[:, 0]
    return raw.astype(np.float64) * own.scale + own.shift


def scan(num_points: int = 5000, extent: float = 120.0) -> Any:
    points = RNG.uniform(-extent / 2, extent / 2, (num_points, 4)).astype(np.float32)
    points[:, 2] *= 0.05
    points[:, 3] = RNG.uniform(0, 1, num_points)
    return points


def test_half_the_bytes_and_values_within_half_a_step() -> None:
    points = scan()
    made = compact(points)
    assert not made.reason
    assert made.cloud.point_step == 8
    assert (made.num_bytes_before, made.num_bytes) == (5000 * 16, 5000 * 8)
    for column, name in enumerate(("x", "y", "z")):
        values = points[:, column].astype(np.float64)
        step = max(1e-3, np.ceil(np.ptp(values) / 65534 * 1e4) / 1e4)
        off = np.abs(decoded(made.cloud, name, "<i2") - values)
        assert off.max() <= step / 2 * (1 + 1e-9)
        assert made.errors[name] == pytest.approx(off.max())
    off = np.abs(decoded(made.cloud, "intensity", "<u2") - points[:, 3])
    assert off.max() <= 0.5 / 65535
    assert made.errors["intensity"] == pytest.approx(off.max(), rel=1e-3)
    assert "80000 -> 40000 bytes, x within 0.00" in str(made)


@pytest.mark.parametrize("extent", [0.5, 60.0, 200.0, 1300.0])
def test_the_smallest_coordinates_stay_what_they_are(extent: float) -> None:
    points = scan(extent=extent)
    made = compact(points).cloud
    for column, name in enumerate(("x", "y", "z")):
        assert np.float32(decoded(made, name, "<i2").min()) == points[:, column].min()


def test_coordinates_of_maps_keep_their_millimetres() -> None:
    columns = {"x": RNG.uniform(0, 100, 300) + 451_000.0, "y": RNG.uniform(0, 100, 300) + 5_411_000.0,
               "z": np.full(300, 250.125)}  # fmt: skip
    made = compact(columns)
    assert made.cloud.point_step == 6
    for name, values in columns.items():
        assert np.abs(decoded(made.cloud, name, "<i2") - values).max() <= 8.1e-4


@pytest.mark.parametrize("reach", [400, 32_767])
def test_voxels_keep_their_places(reach: int) -> None:
    coordinates = RNG.integers(-reach + 1, reach, (500, 3))
    coordinates[:, 0] = np.arange(500) - 250
    coordinates[0], coordinates[1] = -reach, reach  # the whole range
    made = compact(voxserve.Voxels(coordinates, np.ones((len(coordinates), 2))))
    assert made.cloud.point_step == 3 * 2 + 2 * 4
    for column, name in enumerate("xyz"):
        np.testing.assert_array_equal(decoded(made.cloud, name, "<i2"), coordinates[:, column])
        assert made.errors[name] == 0


def test_integers_of_maps_keep_their_values() -> None:
    raw = np.array([[-40_000, 7, 0], [25_534, 8, 1], [-39_999, 9, 2]], "<i4")  # x: the largest range
    fields = tuple(Field(name, "i32", 4 * i, scale=0.01, shift=451_000.0) for i, name in enumerate("xyz"))
    made = compact(PointCloud(raw.tobytes(), 3, 12, fields)).cloud
    for column, name in enumerate("xyz"):
        assert np.abs(decoded(made, name, "<i2") - (raw[:, column] * 0.01 + 451_000.0)).max() < 1e-9
    raw[0, 0] -= 1  # one more than 16 bits hold
    made = compact(PointCloud(raw.tobytes(), 3, 12, fields)).cloud
    assert next(field.scale for field in made.fields if field.name == "x") > 0.01
    assert np.abs(decoded(made, "x", "<i2") - (raw[:, 0] * 0.01 + 451_000.0)).max() <= 0.0051


def test_scales_and_shifts_of_the_given_fields_count() -> None:
    points = scan()
    points[:, 3] *= 255
    cloud = PointCloud.from_array(points, "x:f32*2+1,y:f32,z:f32,intensity:f32*0.00392156862745098")
    made = compact(cloud).cloud
    assert np.abs(decoded(made, "x", "<i2") - (points[:, 0].astype(np.float64) * 2 + 1)).max() < 2.1e-3
    assert decoded(made, "intensity", "<u2").max() <= 1 + 1e-6


def test_negative_intensities_and_intensities_of_zero() -> None:
    points = scan()
    points[:, 3] -= 0.25
    made = compact(points).cloud
    assert np.abs(decoded(made, "intensity", "<u2") - points[:, 3]).max() < 1e-5
    points[:, 3] = 0
    assert not decoded(compact(points).cloud, "intensity", "<u2").any()


def test_other_fields_rows_and_byte_order() -> None:
    dtype = np.dtype({"names": ["ring", "x", "y", "z", "intensity", "normal", "t"], "itemsize": 48,
                      "formats": [">u2", ">f4", ">f4", ">f4", ">u1", (">f4", 3), ">f8"],
                      "offsets": [0, 4, 8, 12, 16, 20, 32]})  # fmt: skip
    table = np.zeros((3, 5), dtype)
    for name in table.dtype.names or ():
        table[name] = RNG.integers(0, 90, table[name].shape)
    rows = b"".join(row.tobytes() + b"pad" for row in table)
    fields = (Field("ring", "u16", 0), Field("x", "f32", 4), Field("y", "f32", 8), Field("z", "f32", 12),
              Field("intensity", "u8", 16, scale=1 / 255), Field("normal", "f32", 20, 3), Field("t", "f64", 32),
              Field("strange", "none"))  # fmt: skip
    cloud = PointCloud(rows, 15, 48, fields, height=3, row_step=5 * 48 + 3, is_bigendian=True, stamp_ns=7, frame_id="a")
    made = compact(cloud).cloud
    assert (made.point_step, made.height, made.row_step, made.is_bigendian) == (2 + 6 + 1 + 12 + 8, 3, 0, False)
    assert (made.stamp_ns, made.frame_id) == (7, "a")
    assert [f.name for f in made.fields] == [f.name for f in fields]
    for name, code in (("ring", "<u2"), ("t", "<f8"), ("normal", "<f4")):
        first = table[name] if name != "normal" else table[name][..., 0]
        assert np.array_equal(decoded(made, name, code), first.reshape(-1).astype(np.float64))
    assert np.allclose(decoded(made, "intensity", "<u1"), table["intensity"].reshape(-1) / 255)
    assert np.abs(decoded(made, "y", "<i2") - table["y"].reshape(-1)).max() <= 7.1e-4  # half of a step of 90 m


@pytest.mark.parametrize("num_points", [0, 1])
def test_clouds_of_hardly_any_points(num_points: int) -> None:
    points = scan()[:num_points]
    made = compact(points).cloud
    assert made.num_points == num_points
    assert np.abs(decoded(made, "x", "<i2") - points[:, 0]).max(initial=0) < 1e-7


@pytest.mark.parametrize(
    ("column", "value", "reason"),
    [(0, np.nan, "x is not a finite"), (2, np.inf, "z is not a finite"), (3, np.nan, "intensity is not a finite"),
     (1, 65534 * COARSEST_STEP + 100, "y spans 14")],
)  # fmt: skip
def test_what_16_bits_cannot_hold_is_sent_as_it_is(column: int, value: float, reason: str) -> None:
    points = scan()
    points[77, column] = value
    made = compact(points)
    assert reason in made.reason
    assert reason in str(made)
    assert bytes(made.cloud.data) == points.tobytes()
    with pytest.warns(CompactWarning, match=reason):
        compact_or_warn(PointCloud.from_array(points))


def test_compact_clouds_stay_as_they_are() -> None:
    once = compact(scan()).cloud
    again = compact(once)
    assert again.cloud is once
    assert again.reason == "no value has more than 16 bits"
    assert compact_or_warn(once) is once  # without a warning


def test_clouds_that_are_none() -> None:
    with pytest.raises(ValueError, match="no field 'z'; it has x, y"):
        compact({"x": np.zeros(3), "y": np.zeros(3)})
    with pytest.raises(ValueError, match="does not fit"):
        compact(PointCloud(bytes(24), 2, 12, tuple(Field(n, "f32", 4 + 4 * i) for i, n in enumerate("xyz"))))


@pytest.mark.parametrize("method", ["segment", "infer", "detect", "tensors"])
def test_requests_with_compact_clouds(server: FakeServer, method: str) -> None:
    points = scan(100)
    with voxserve.Client(server.address) as client, contextlib.suppress(voxserve.InferenceError):
        getattr(client, method)("m", points, scales={"intensity": 0.5}, compact=True)  # "m" has labels alone
    sent = server.requests[0].cloud
    assert (sent.point_step, len(sent.data)) == (8, 800)
    assert [(f.name, f.type) for f in sent.fields] == [("x", 3), ("y", 3), ("z", 3), ("intensity", 4)]
    raw = np.frombuffer(sent.data, [("x", "<i2"), ("y", "<i2"), ("z", "<i2"), ("intensity", "<u2")])
    points[:, 3] *= 0.5
    for column, field in enumerate(sent.fields):
        assert np.abs(raw[field.name] * field.scale + field.shift - points[:, column]).max() < 2e-3


def test_streams_of_compact_frames(client: Any, server: FakeServer) -> None:
    with client.stream("m", compact=True) as stream:
        stream.send(1, scan(50))
        stream.close_sends()
        assert len(next(stream).segmentation.labels) == 50
    assert server.requests[1].frame.cloud.point_step == 8
    points = scan(50)
    points[3, 0] = np.nan
    with client.stream("m", compact=True) as stream:
        with pytest.warns(CompactWarning, match="x is not a finite number"):
            stream.send(1, points)
        stream.close_sends()
        next(stream)
    assert server.requests[3].frame.cloud.data == points.tobytes()


@pytest.mark.integration
def test_the_server_reads_what_the_cloud_decodes_to(real_server: ServerAddress) -> None:
    points = np.fromfile(REPOSITORY / "deploy/scans/pandaset_070.bin", np.float32).reshape(-1, 4)
    read = compact(points).cloud
    same = np.stack([read.values(name) for name in ("x", "y", "z", "intensity")], axis=1)
    with voxserve.Client(real_server, timeout=120) as real:
        labels = real.segment("minkunet", points, compact=True)
        np.testing.assert_array_equal(labels, real.segment("minkunet", same))
        assert (labels == real.segment("minkunet", points)).mean() > 0.99


@pytest.mark.integration
def test_the_command_sends_compact_clouds(real_server: ServerAddress, tmp_path: Path, capsys: Any) -> None:
    path = str(REPOSITORY / "deploy/scans/pandaset_070.bin")
    common = ["infer", "--address", str(real_server), "--model", "minkunet"]
    assert main([*common, path, "--compact", "--save", str(tmp_path / "a.npy")]) == 0
    with voxserve.Client(real_server, timeout=120) as real:
        labels = real.segment("minkunet", voxserve.read(path), compact=True)
    np.testing.assert_array_equal(np.load(tmp_path / "a.npy"), labels)
    points = scan(1000)
    points[5, 1] = np.nan
    points.tofile(tmp_path / "nan.bin")
    capsys.readouterr()
    assert main([*common, str(tmp_path / "nan.bin"), "--compact"]) == 0
    told = capsys.readouterr().err
    assert "voxserve: warning: the cloud is sent with all its bits: a point's y is not a finite number" in told


@pytest.mark.integration
@pytest.mark.skipif(not os.environ.get("VOXSERVE_CLIENT_BINARY"), reason="VOXSERVE_CLIENT_BINARY names no client")
def test_both_clients_send_the_same_cloud(real_server: ServerAddress, tmp_path: Path) -> None:
    path = REPOSITORY / "deploy/scans/pandaset_070.bin"
    command = [os.environ["VOXSERVE_CLIENT_BINARY"], "infer", f"--address={real_server}", "--model=minkunet"]
    for name, flags in (("plain.npy", []), ("compact.npy", ["--compact"])):
        subprocess.run(
            [*command, path, *flags, f"--save={tmp_path / name}"], check=True, capture_output=True, timeout=120
        )
    with voxserve.Client(real_server, timeout=120) as real:
        labels = real.segment("minkunet", voxserve.read(path), compact=True)
    np.testing.assert_array_equal(np.load(tmp_path / "compact.npy"), labels)
    assert (np.load(tmp_path / "plain.npy") != labels).any()
