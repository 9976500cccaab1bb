"""Tests how users' arrays become PointCloud messages. The expected values are NumPy's own view of the same data."""

from __future__ import annotations

import base64
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from voxserve import PointCloud, field_spec, wire
from voxserve.encoding import encode_request
from voxserve.point_cloud import as_cloud


def fields_of(cloud: PointCloud) -> list[tuple[str, str, int]]:
    return [(f.name, f.type, f.offset) for f in cloud.fields]


@pytest.mark.parametrize("code", sorted(field_spec.NUMPY_CODES.values()))
@pytest.mark.parametrize("order", ["<", ">"])
def test_every_type_in_both_orders(code: str, order: str) -> None:
    values = np.array([[1, 2, 3, 4], [5, 6, 7, 100]], np.dtype(code).newbyteorder(order))
    cloud = as_cloud(values)
    assert not cloud.is_bigendian
    for column, name in enumerate(("x", "y", "z", "intensity")):
        np.testing.assert_array_equal(cloud.values(name), values[:, column].astype(np.float32))


def test_arrays_are_not_copied() -> None:
    points = np.zeros((5, 4), np.float32)
    points[3, 0] = 7
    cloud = as_cloud(points)
    points[3, 0] = 8
    assert cloud.values("x")[3] == 8


def test_strided_and_transposed_arrays() -> None:
    base = np.arange(60, dtype=np.float32).reshape(5, 12)
    np.testing.assert_array_equal(as_cloud(base[::2, 1:5]).values("y"), base[::2, 2])
    np.testing.assert_array_equal(as_cloud(base[:4].T).values("intensity"), base[3])


def test_three_columns_have_no_intensity() -> None:
    assert [f.name for f in as_cloud(np.zeros((1, 3), np.float32)).fields] == ["x", "y", "z"]


def test_further_columns_are_skipped() -> None:
    cloud = as_cloud(np.arange(12, dtype=np.float64).reshape(2, 6))
    assert cloud.point_step == 48
    assert [f.name for f in cloud.fields] == ["x", "y", "z", "intensity"]
    assert cloud.values("intensity").tolist() == [3, 9]


def test_lists_of_numbers() -> None:
    assert as_cloud([[1.0, 2.0, 3.0]]).values("z").tolist() == [3.0]


def test_field_spec_for_columns() -> None:
    cloud = as_cloud(np.full((2, 5), 51, np.float32), "x:f32,y:f32,-:f32,z:f32,intensity:f32*0.5+1")
    assert fields_of(cloud) == [("x", "f32", 0), ("y", "f32", 4), ("z", "f32", 12), ("intensity", "f32", 16)]
    assert cloud.values("intensity").tolist() == [26.5, 26.5]


def test_structured_arrays_name_their_fields() -> None:
    dtype = np.dtype([("x", "<f4"), ("y", "<f4"), ("z", "<f4"), ("t", "<i8"), ("rgb", "u1", (3,)), ("ring", "<u2")])
    points = np.zeros(4, dtype)
    points["ring"] = [1, 2, 3, 65535]
    cloud = as_cloud(points)
    assert fields_of(cloud) == [
        ("x", "f32", 0),
        ("y", "f32", 4),
        ("z", "f32", 8),
        ("rgb", "u8", 20),
        ("ring", "u16", 23),
        ("t", field_spec.NO_TYPE, 0),
    ]
    assert cloud.fields[3].count == 3
    np.testing.assert_array_equal(cloud.values("ring"), points["ring"])


def test_fields_of_types_that_cannot_be_sent_become_float64() -> None:
    kinds = [("X", "i8"), ("y", "g"), ("z", "u8"), ("valid", "?"), ("Reflectivity", "i8"), ("name", "U3")]
    for order in "<>":
        points = np.zeros(2, np.dtype(kinds).newbyteorder(order))
        for name, values in {"X": [1, -2], "y": [3, 4], "z": [5, 6], "valid": [1, 0], "Reflectivity": [7, 8]}.items():
            points[name] = values
        cloud = as_cloud(points)
        assert [f.type for f in cloud.fields] == ["f64", "f64", "f64", "u8", "f64", field_spec.NO_TYPE]
        values = [cloud.values(name).tolist() for name in ("x", "y", "z", "valid", "reflectivity")]
        assert values == [[1, -2], [3, 4], [5, 6], [1, 0], [7, 8]]


def test_other_fields_are_not_copied() -> None:
    kinds = [
        ("x", "f4"),
        ("y", "f4"),
        ("z", "f4"),
        ("t", "u8"),
        ("pair", "i8", (2,)),
        ("valid", "?"),
        ("near", "?", (2,)),
    ]
    dtype = np.dtype(kinds, align=True)
    points = np.zeros(3, dtype)
    points["valid"], points["near"], points["t"], points["pair"] = [True, False, True], [[False, True]] * 3, 5, [7, 8]
    cloud = as_cloud(points)
    assert np.shares_memory(np.frombuffer(cloud.data, np.uint8), points)
    assert cloud.values("valid").tolist() == [1, 0, 1]
    assert fields_of(cloud) == [
        ("x", "f32", 0),
        ("y", "f32", 4),
        ("z", "f32", 8),
        ("valid", "u8", dtype.fields["valid"][1]),
        ("near", "u8", dtype.fields["near"][1]),
        ("t", field_spec.NO_TYPE, 0),
        ("pair", field_spec.NO_TYPE, 0),
    ]
    assert as_cloud(points[::2]).values("valid").tolist() == [1, 1]
    named = as_cloud(points, {"time": "T", "two": "pair"})
    assert (named.values("time").tolist(), named.values("two").tolist()) == ([5] * 3, [7] * 3)
    assert named.field("two") == field_spec.Field("two", "f64", named.fields[4].offset, 2)
    assert as_cloud(points, "t:f64*0.5").values("t").tolist() == [2.5] * 3


def test_objects_in_a_structured_array() -> None:
    """As pandas' to_records() makes them of texts and of missing values."""
    kinds = [("x", "f4"), ("y", "O"), ("z", "f4"), ("name", "O"), ("pair", "O", (2,)), ("t", "i8")]
    points = np.array([(1, 2.5, 3, "a", (1, 2), 7), (4, None, 6, "b", (3, 4), 8)], kinds)
    cloud = as_cloud(points)
    assert [f.name for f in cloud.fields] == ["x", "y", "z", "name", "pair", "t"]
    assert [f.type for f in cloud.fields][3:] == [field_spec.NO_TYPE] * 3
    np.testing.assert_array_equal([cloud.values(name) for name in "xyz"], np.float32([[1, 4], [2.5, np.nan], [3, 6]]))
    assert as_cloud(points[["name"]]).fields == (field_spec.Field("name", field_spec.NO_TYPE),)
    assert as_cloud(points, {"count": "pair", "time": "t"}).values("time").tolist() == [7, 8]


@pytest.mark.parametrize("value", ["a", 10**400, [1]])
def test_objects_that_are_no_numbers(value: Any) -> None:
    points = np.zeros(2, [("x", "f4"), ("y", "f4"), ("z", "f4"), ("Intensity", "O"), ("tag", "O")])
    points["tag"][0] = value
    assert as_cloud(points).field("tag") == field_spec.Field("tag", field_spec.NO_TYPE)
    points["Intensity"][0] = value
    with pytest.raises(ValueError, match=r"column 'Intensity' is object; .* can be sent"):
        as_cloud(points)
    with pytest.raises(ValueError, match=r"column 'Intensity' is object; .* can be sent"):
        as_cloud({name: points[name] for name in points.dtype.names})


def test_texts_in_a_structured_array() -> None:
    with pytest.raises(ValueError, match=r"column 'x' is <U3; .* can be sent"):
        as_cloud(np.zeros(2, [("x", "U3"), ("y", "f4"), ("z", "f4")]))


def test_names_of_columns_are_a_list_of_texts() -> None:
    points = np.arange(8, dtype=np.float32).reshape(2, 4)
    assert as_cloud(points, (name for name in "xyzt")).values("t").tolist() == [3, 7]
    for names in ({"x", "y", "z"}, [0, 1, 2], [], ["x", "y", ""]):
        with pytest.raises(ValueError, match="a list of the columns' names is needed"):
            as_cloud(points, names)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="fields name two columns 'z'"):
        as_cloud(points, ["x", "y", "z", "z"])
    assert as_cloud(points, ["x", "-", "-", "z"]).values("z").tolist() == [3, 7]


def test_big_endian_structured_arrays_are_sent_as_they_are() -> None:
    points = np.zeros(2, [("x", ">f4"), ("y", ">f4"), ("z", ">f4"), ("ring", "u1")])
    points["z"] = [1.5, 2.5]
    cloud = as_cloud(points)
    assert cloud.is_bigendian
    assert cloud.values("z").tolist() == [1.5, 2.5]


def test_mixed_endian_structured_arrays() -> None:
    points = np.zeros(2, [("x", ">f4"), ("y", "<f4"), ("z", ">f8")])
    points["x"], points["y"], points["z"] = [1, 2], [3, 4], [5, 6]
    cloud = as_cloud(points)
    assert [cloud.values(name).tolist() for name in "xyz"] == [[1, 2], [3, 4], [5, 6]]


def test_columns() -> None:
    columns = {"x": np.float32([1, 2]), "y": np.arange(2), "z": np.arange(2), "ring": np.uint8([7, 8])}
    columns["y"] = columns["y"].astype(np.int16)
    columns["z"] = columns["z"].astype(np.float64)
    cloud = as_cloud(columns)
    assert fields_of(cloud) == [("x", "f32", 0), ("y", "i16", 4), ("z", "f64", 6), ("ring", "u8", 14)]
    assert cloud.values("ring").tolist() == [7, 8]


def ros_message(**changes: Any) -> SimpleNamespace:
    points = np.zeros((2, 3), [("x", "<f4"), ("y", "<f4"), ("z", "<f4"), ("pad", "<f4")])
    points["x"] = [[1, 2, 3], [4, 5, 6]]
    rows = b"".join(row.tobytes() + b"\xff" * 8 for row in points)
    fields = [SimpleNamespace(name=n, offset=4 * i, datatype=7, count=1) for i, n in enumerate("xyz")]
    stamp = SimpleNamespace(sec=5, nanosec=6)
    message = {
        "header": SimpleNamespace(stamp=stamp, frame_id="os_lidar"),
        "height": 2,
        "width": 3,
        "fields": fields,
        "is_bigendian": False,
        "point_step": 16,
        "row_step": 56,
        "data": rows,
        "is_dense": True,
    }
    return SimpleNamespace(**{**message, **changes})


def test_point_cloud2_is_forwarded_as_it_is() -> None:
    message = ros_message()
    cloud = as_cloud(message)
    assert cloud.data is message.data
    assert (cloud.num_points, cloud.height, cloud.row_step, cloud.point_step) == (6, 2, 56, 16)
    assert (cloud.stamp_ns, cloud.frame_id) == (5_000_000_006, "os_lidar")
    assert cloud.values("x").tolist() == [1, 2, 3, 4, 5, 6]


def test_ros1_stamps_and_byte_lists() -> None:
    stamp = SimpleNamespace(secs=1, nsecs=2)
    message = ros_message(header=SimpleNamespace(stamp=stamp, frame_id=""), data=list(ros_message().data))
    cloud = as_cloud(message)
    assert cloud.stamp_ns == 1_000_000_002
    assert cloud.values("x").tolist() == [1, 2, 3, 4, 5, 6]


def test_a_message_as_a_dictionary() -> None:
    """As roslibpy and other clients of rosbridge have it."""
    message = ros_message()
    as_json = {
        **vars(message),
        "header": {"stamp": {"secs": 5, "nsecs": 6}, "frame_id": "os_lidar"},
        "fields": [vars(field) for field in message.fields],
        "data": base64.b64encode(message.data).decode(),
    }
    for cloud in (as_cloud(as_json), PointCloud.from_ros(as_json)):
        assert (cloud.num_points, cloud.stamp_ns, cloud.frame_id) == (6, 5_000_000_006, "os_lidar")
        assert cloud.values("x").tolist() == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize("message", [None, {}, {"x": [1.0]}, np.zeros((2, 4))])
def test_what_is_no_message_is_refused(message: Any) -> None:
    with pytest.raises(ValueError, match=r"is no PointCloud2: it has no .*point_step"):
        PointCloud.from_ros(message)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"fields": [{"name": "x"}]}, "is no PointField: it has no count, datatype, offset"),
        ({"fields": ["x"]}, "a str is no PointField: it has no datatype, name, offset"),
        ({"fields": None}, "the fields of a PointCloud2 are a NoneType"),
        ({"fields": {"x": 0}}, "a str is no PointField"),
        ({"fields": [{"name": "x", "offset": None, "datatype": 7, "count": 1}]}, "the offset of a PointCloud2 is None"),
        ({"width": None}, "the width of a PointCloud2 is None"),
        ({"point_step": [16]}, r"the point_step of a PointCloud2 is \[16\]"),
        ({"header": {"stamp": {"sec": "now", "nanosec": 0}}}, "the stamp of a PointCloud2 is now"),
        ({"data": None}, "the data of a PointCloud2 is a NoneType; bytes, a list of bytes or base64 is needed"),
        ({"data": 112}, "the data of a PointCloud2 is a int"),
        ({"data": {"type": "Buffer", "data": [0]}}, "the data of a PointCloud2 is a dict"),
        ({"data": [0.5]}, r"the data of a PointCloud2 is a list; .* \('float' object cannot"),
        ({"data": [256]}, r"the data of a PointCloud2 is a list; .* \(bytes must be in range\(0, 256\)\)"),
        ({"data": "???"}, r"the data of a PointCloud2 is a str; .* base64 is needed \(Only base64 data is allowed\)"),
    ],
)
def test_broken_messages_are_refused(changes: dict[str, Any], message: str) -> None:
    for convert in (as_cloud, PointCloud.from_ros):
        with pytest.raises(ValueError, match=message):
            convert({**vars(ros_message()), **changes})


def test_a_list_of_bytes_is_read_once() -> None:
    num_reads = 0

    class Data(list[int]):
        def __iter__(self) -> Any:
            nonlocal num_reads
            num_reads += 1
            return super().__iter__()

    cloud = as_cloud({**vars(ros_message()), "data": Data(ros_message().data)})
    assert (cloud.data, num_reads) == (ros_message().data, 1)


def test_a_stamp_that_nobody_set_is_none() -> None:
    stamp = SimpleNamespace(sec=0, nanosec=0)
    assert as_cloud(ros_message(header=SimpleNamespace(stamp=stamp, frame_id=""))).stamp_ns is None


@pytest.mark.parametrize("datatype", [0, 9, 10, 12, 255])
def test_fields_of_datatypes_that_cannot_be_read(datatype: int) -> None:
    """9 and 10 are int64 and uint64 (common_interfaces#301); float16, which is 9 on the wire, is none of ROS."""
    message = ros_message()
    message.fields.append(SimpleNamespace(name="t", offset=0, datatype=datatype, count=1))
    cloud = as_cloud(message)
    assert cloud.values("x").tolist() == [1, 2, 3, 4, 5, 6]
    assert cloud.field("t") == field_spec.Field("t", field_spec.NO_TYPE)
    sent = wire.InferRequest.FromString(encode_request(wire.InferRequest(model="m"), cloud, 1 << 20)).cloud.fields
    assert [field.type for field in sent] == [7, 7, 7, 0]
    with pytest.raises(ValueError, match="field 't' has a type that cannot be sent"):
        cloud.values("t")


def test_a_bool_of_a_message_is_a_byte() -> None:
    fields = [SimpleNamespace(name="valid", offset=12, datatype=11, count=1)]
    cloud = as_cloud(ros_message(fields=fields))
    assert cloud.fields == (field_spec.Field("valid", "u8", 12),)
    assert cloud.values("valid").tolist() == [0] * 6


@pytest.mark.parametrize("changes", [{"height": 0}, {"width": 0}, {"height": 0, "width": 0}])
def test_data_of_no_points_are_refused(changes: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=r"are no points, but the message has 112 bytes of data"):
        as_cloud(ros_message(**changes))
    assert as_cloud(ros_message(**changes, data=b"")).num_points == 0


def test_a_name_in_another_case() -> None:
    points = np.array([(1, 2, 3, 4)], [("X", "<f4"), ("Y", "<f4"), ("y", "<f4"), ("YY", "<f4")])
    cloud = as_cloud(points)
    assert [cloud.values(name).tolist() for name in ("x", "Y", "y", "yy")] == [[1], [2], [3], [4]]
    assert cloud.scaled({"x": 2, "y": 3, "Yy": 4}).values("x").tolist() == [2]
    assert [f.scale for f in cloud.scaled({"x": 2, "y": 3, "Yy": 4}).fields] == [2, 1, 3, 4]
    assert [f.scale for f in as_cloud(points, "x:f32*2,Y:f32*3").fields] == [2, 3, 1, 1]
    cloud = as_cloud(np.zeros(1, [("ZZ", "<f4"), ("zZ", "<f4")]))
    assert cloud.field("zz") is None


def test_new_names() -> None:
    points = np.array([[1, 2, 3, 4, 5]], np.float32)
    cloud = as_cloud(points, "x:f32,y:f32,z:f32,intensity:f32,ring:f32,intensity=ring,ring=intensity*2")
    assert [f.name for f in cloud.fields] == ["x", "y", "z", "ring", "intensity"]
    assert [cloud.values(name).tolist() for name in ("intensity", "ring")] == [[5], [8]]
    cloud = as_cloud(points, {"intensity": "z"})
    assert [f.name for f in cloud.fields] == ["x", "y", "intensity"]
    assert cloud.values("intensity").tolist() == [3]
    with pytest.raises(ValueError, match="say a=ring, but the points have x, y, z, intensity"):
        as_cloud(points, {"a": "ring"})
    with pytest.raises(ValueError, match="'x' gets two names"):
        as_cloud(points, {"a": "x", "b": "x"})
    with pytest.raises(ValueError, match="'x' gets two names"):
        as_cloud(points, {"a": "x", "b": "X"})


@pytest.mark.parametrize(
    ("points", "fields", "message"),
    [
        (np.zeros((4, 2), np.float32), None, r"shape \(4, 2\)"),
        (np.zeros(4, np.float32), None, r"shape \(4,\)"),
        (np.zeros((4, 4), bool), None, "points are bool"),
        (np.full((4, 4), "a"), None, "points are <U1"),
        (np.zeros((4, 4), complex), None, "points are complex128"),
        (np.zeros((4, 4), np.float32), list("xyzit"), "5 fields for 4 columns"),
        (np.zeros((4, 4), np.float32), "x:f64,y:f64", "x:f64, but the array's columns are all f32"),
        (np.zeros((4, 3), np.float32), "x:f32,y:f32,z:f32,-:f32", "16 bytes, but a row of 3 columns has 12"),
        (np.zeros((2, 2), [("x", "f4")]), None, r"structured array has shape \(2, 2\)"),
        ({}, None, "no columns"),
        ({"x": np.zeros(2), "y": np.zeros(3)}, None, "equally long"),
        ({"x": np.zeros(2, complex)}, None, "column 'x' is complex128"),
        ({"x": np.zeros(2)}, ["x"], "may only be a field spec"),
        ({"x": np.zeros(2)}, "w:f64", "name 'w', but the points have x"),
        ({"x": np.zeros(2)}, "x:f32", "say x:f32, but the points have x:f64"),
    ],
)
def test_what_cannot_be_described(points: Any, fields: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        as_cloud(points, fields)


def test_a_scale_for_a_field_that_is_not_there() -> None:
    with pytest.raises(ValueError, match="scale for 'ring', but the cloud's fields are x, y, z"):
        as_cloud(np.zeros((1, 3), np.float32)).scaled({"ring": 2})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_points": 3}, "are 24"),
        ({"num_points": 0}, "0 points of 12 bytes"),
        ({"height": 4}, "height of 4"),
        ({"point_step": 6}, "of 6 bytes take 12"),
    ],
)
def test_values_never_read_beyond_the_bytes(changes: dict[str, int], message: str) -> None:
    layout = {"num_points": 2, "point_step": 12, "height": 0, **changes}
    cloud = PointCloud(b"\0" * 24, fields=as_cloud(np.zeros((1, 3), np.float32)).fields, **layout)
    with pytest.raises(ValueError, match=message):
        cloud.values("z")


@pytest.mark.parametrize("num_points", [0, 1, 127, 128, 20_000])
def test_encoded_request_is_what_protobuf_writes(num_points: int) -> None:
    points = np.random.default_rng(2).normal(size=(num_points, 4)).astype(np.float32)
    cloud = as_cloud(points).scaled({"intensity": 0.25})
    parsed = wire.InferRequest.FromString(encode_request(wire.InferRequest(model="m", version=2), cloud, 1 << 20))
    expected = wire.InferRequest(model="m", version=2)
    expected.cloud.data = points.tobytes()
    expected.cloud.num_points, expected.cloud.point_step = num_points, 16
    for index, name in enumerate(("x", "y", "z", "intensity")):
        expected.cloud.fields.add(name=name, offset=4 * index, type=7, count=1)
    expected.cloud.fields[3].scale = 0.25
    assert parsed == expected
