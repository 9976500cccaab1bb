"""Makes the messages that a labelled bag has for an answer: a cloud with labels and colours, the boxes as a Foxglove
scene and as RViz markers, and the times; and the message for a cloud that was left out.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from voxserve.results import Answer, ClassInfo, Detections, Segmentation
from voxserve.row_layout import row_step_of

_U8, _U16, _F32 = 2, 4, 7  # the numbers of types in sensor_msgs/PointField
_NO_COLOR = (110, 110, 110)
_OPACITY = 0.35
_TEXT_METRES = 0.6
SCENE_SCHEMA = "foxglove.SceneUpdate"
TIMING_SCHEMA = "voxserve.Timing"
SKIPPED_SCHEMA = "voxserve.Skipped"


@dataclass(frozen=True)
class Colors:
    """The colours of a model's classes."""

    by_id: Mapping[int, tuple[int, int, int]]

    @staticmethod
    def of(classes: Sequence[ClassInfo]) -> Colors:
        """Returns the colours that the model's configuration gives."""
        return Colors({info.id: info.color for info in classes})

    def of_id(self, class_id: int) -> tuple[int, int, int]:
        """Returns the red, green and blue (0 to 255) of a class; grey if the model does not have the class."""
        return self.by_id.get(class_id, _NO_COLOR)

    def of_labels(self, labels: npt.NDArray[np.integer]) -> npt.NDArray[np.uint8]:
        """Returns the colours of labels [N]: [N, 3]."""
        size = int(labels.max(initial=0)) + 1
        table = np.array([self.of_id(i) for i in range(size)], np.uint8)
        colors: npt.NDArray[np.uint8] = table[labels]
        return colors


def labelled(message: Any, result: Segmentation, colors: Colors, types: Mapping[str, Any]) -> Any:
    """Returns a PointCloud2 of the message's points with two more fields: rgb (a float32 that holds the three bytes, as
    in PCL) and label (uint8 or uint16). Each point keeps its bytes; rows have no gaps between them.

    types: the classes of ROS 2 messages by name. If the message already has a field with one of the new names, the new
    field's name gets an underscore at its end.
    """
    width, height, step = message.width, message.height, message.point_step
    order = ">" if message.is_bigendian else "<"
    is_wide = result.labels.dtype.itemsize == 2
    rgb_at = -(-step // 4) * 4
    new_step = rgb_at + 8
    points = np.zeros((height, width, new_step), np.uint8)
    points[:, :, :step] = _points(message)
    rgb = colors.of_labels(result.labels).astype(np.uint32)
    packed = (rgb[:, 0] << 16 | rgb[:, 1] << 8 | rgb[:, 2]).astype(order + "u4")
    labels = result.labels.astype(order + "u2" if is_wide else "u1")
    flat = points.reshape(-1, new_step)
    flat[:, rgb_at : rgb_at + 4] = packed.view(np.uint8).reshape(-1, 4)
    flat[:, rgb_at + 4 : rgb_at + 4 + labels.itemsize] = labels.view(np.uint8).reshape(-1, labels.itemsize)
    field = types["sensor_msgs/msg/PointField"]
    fields = [field(name=f.name, offset=f.offset, datatype=f.datatype, count=f.count) for f in message.fields]
    names = {f.name for f in fields}
    fields.append(field(name=_free("rgb", names), offset=rgb_at, datatype=_F32, count=1))
    fields.append(field(name=_free("label", names), offset=rgb_at + 4, datatype=_U16 if is_wide else _U8, count=1))
    return types["sensor_msgs/msg/PointCloud2"](
        header=header(message.header, types),
        height=height,
        width=width,
        fields=fields,
        is_bigendian=bool(message.is_bigendian),
        point_step=new_step,
        row_step=new_step * width,
        data=points.reshape(-1),
        is_dense=bool(message.is_dense),
    )


def _points(message: Any) -> npt.NDArray[np.uint8]:
    """Returns the bytes of each point: [height, width, point_step]."""
    shape = (message.height, message.width, message.point_step)
    if not message.width * message.height:
        return np.zeros(shape, np.uint8)
    data = np.ascontiguousarray(message.data, np.uint8)
    points = message.width * message.height
    row_step = row_step_of(points, message.height, message.point_step, message.row_step, data.size)
    return np.ndarray(shape, np.uint8, data, 0, (row_step, message.point_step, 1))


def plain(message: Any, types: Mapping[str, Any]) -> Any:
    """Returns a PointCloud2 of the message's points without additions, for models without labels. Rows have no gaps
    between them, since Rerun 0.41 cannot read a message with gaps. types: as for labelled().
    """
    field = types["sensor_msgs/msg/PointField"]
    return types["sensor_msgs/msg/PointCloud2"](
        header=header(message.header, types),
        height=message.height,
        width=message.width,
        fields=[field(name=f.name, offset=f.offset, datatype=f.datatype, count=f.count) for f in message.fields],
        is_bigendian=bool(message.is_bigendian),
        point_step=message.point_step,
        row_step=message.point_step * message.width,
        data=np.ascontiguousarray(_points(message)).reshape(-1),
        is_dense=bool(message.is_dense),
    )


def _free(name: str, names: set[str]) -> str:
    while name in names:
        name += "_"
    return name


def header(old: Any, types: Mapping[str, Any]) -> Any:
    """Returns a ROS 2 header with the stamp and frame of `old`, a header of ROS 1 or 2."""
    stamp = types["builtin_interfaces/msg/Time"](sec=int(old.stamp.sec), nanosec=int(old.stamp.nanosec))
    return types["std_msgs/msg/Header"](stamp=stamp, frame_id=str(old.frame_id).lstrip("/"))


def _text(found: Detections, index: int) -> str:
    name = found.names[index] or f"class {int(found.class_ids[index])}"
    return f"{name} {float(found.scores[index]):.2f}"


def scene(old: Any, found: Detections, colors: Colors) -> bytes:
    """Returns the boxes as a foxglove.SceneUpdate in JSON. It has one entity, which replaces that of the scan before.
    old: the header of the cloud's message.
    """
    stamp = {"sec": int(old.stamp.sec), "nsec": int(old.stamp.nanosec)}
    cubes, texts = [], []
    for index, (x, y, z, length, width, height, yaw) in enumerate(found.boxes.tolist()):
        red, green, blue = (value / 255 for value in colors.of_id(int(found.class_ids[index])))
        turn = {"x": 0.0, "y": 0.0, "z": math.sin(yaw / 2), "w": math.cos(yaw / 2)}
        cubes.append(
            {
                "pose": {"position": {"x": x, "y": y, "z": z}, "orientation": turn},
                "size": {"x": length, "y": width, "z": height},
                "color": {"r": red, "g": green, "b": blue, "a": _OPACITY},
            }
        )
        texts.append(
            {
                "pose": {
                    "position": {"x": x, "y": y, "z": z + height / 2 + _TEXT_METRES},
                    "orientation": {"x": 0.0, "y": 0.0, "z": 0.0, "w": 1.0},
                },
                "billboard": True,
                "font_size": _TEXT_METRES,
                "scale_invariant": False,
                "color": {"r": red, "g": green, "b": blue, "a": 1.0},
                "text": _text(found, index),
            }
        )
    entity = {
        "timestamp": stamp,
        "frame_id": str(old.frame_id).lstrip("/"),
        "id": "voxserve",
        "lifetime": {"sec": 0, "nsec": 0},
        "frame_locked": False,
        "metadata": [{"key": "model", "value": f"{found.model} version {found.version}"}],
        **{kind: [] for kind in ("arrows", "spheres", "cylinders", "lines", "triangles", "models")},
        "cubes": cubes,
        "texts": texts,
    }
    return json.dumps({"deletions": [], "entities": [entity]}).encode()


def markers(old: Any, found: Detections, colors: Colors, types: Mapping[str, Any]) -> Any:
    """Returns the boxes as a visualization_msgs/MarkerArray, which deletes all earlier markers and adds a cube and a
    text for each box. old: the header of the cloud's message. types: as for labelled().
    """
    made = [_marker(old, types, 0, kind=0, action=3)]
    for index, (x, y, z, length, width, height, yaw) in enumerate(found.boxes.tolist()):
        color = colors.of_id(int(found.class_ids[index]))
        turn = (math.sin(yaw / 2), math.cos(yaw / 2))
        made.append(_marker(old, types, 2 * index, 1, 0, (x, y, z), turn, (length, width, height), (*color, _OPACITY)))
        above = (x, y, z + height / 2 + _TEXT_METRES)
        size = (0.0, 0.0, _TEXT_METRES)
        made.append(_marker(old, types, 2 * index + 1, 9, 0, above, (0, 1), size, (*color, 1.0), _text(found, index)))
    return types["visualization_msgs/msg/MarkerArray"](markers=made)


def _marker(
    old: Any,
    types: Mapping[str, Any],
    number: int,
    kind: int,
    action: int,
    place: tuple[float, float, float] = (0, 0, 0),
    turn: tuple[float, float] = (0, 1),
    size: tuple[float, float, float] = (0, 0, 0),
    color: tuple[float, float, float, float] = (0, 0, 0, 0),
    text: str = "",
) -> Any:
    point, quaternion = types["geometry_msgs/msg/Point"], types["geometry_msgs/msg/Quaternion"]
    vector, rgba = types["geometry_msgs/msg/Vector3"], types["std_msgs/msg/ColorRGBA"]
    x, y, z = (float(value) for value in place)
    sx, sy, sz = (float(value) for value in size)
    red, green, blue = (float(value) / 255 for value in color[:3])
    return types["visualization_msgs/msg/Marker"](
        header=header(old, types),
        ns="voxserve",
        id=number,
        type=kind,
        action=action,
        pose=types["geometry_msgs/msg/Pose"](
            position=point(x=x, y=y, z=z), orientation=quaternion(x=0.0, y=0.0, z=float(turn[0]), w=float(turn[1]))
        ),
        scale=vector(x=sx, y=sy, z=sz),
        color=rgba(r=red, g=green, b=blue, a=float(color[3])),
        lifetime=types["builtin_interfaces/msg/Duration"](sec=0, nanosec=0),
        frame_locked=False,
        points=[],
        colors=[],
        texture_resource="",
        texture=types["sensor_msgs/msg/CompressedImage"](
            header=header(old, types), format="", data=np.zeros(0, np.uint8)
        ),
        uv_coordinates=[],
        text=text,
        mesh_resource="",
        mesh_file=types["visualization_msgs/msg/MeshFile"](filename="", data=np.zeros(0, np.uint8)),
        mesh_use_embedded_materials=False,
    )


def timing(answer: Answer) -> bytes:
    """Returns the times of an answer in milliseconds, as JSON with the schema TIMING_SCHEMA."""
    stages = {stage.name: stage.seconds * 1e3 for stage in answer.stages}
    return json.dumps(
        {"round_trip_ms": answer.round_trip * 1e3, "server_ms": sum(stages.values()), "stages_ms": stages}
    ).encode()


def skipped(topic: str, index: int, reason: str) -> bytes:
    """Returns the message that says which message of which topic was left out, as JSON with the schema SKIPPED_SCHEMA.
    index: the message's index in the topic, from 0.
    """
    return json.dumps({"topic": topic, "index": index, "reason": reason}).encode()


def _object(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties}


def _array(items: dict[str, Any]) -> dict[str, Any]:
    return {"type": "array", "items": items}


def json_schema(name: str) -> bytes:
    """Returns a JSON schema. name: SCENE_SCHEMA, TIMING_SCHEMA or SKIPPED_SCHEMA. The first has the fields that scene()
    writes.
    """
    number, text, flag = {"type": "number"}, {"type": "string"}, {"type": "boolean"}
    if name == TIMING_SCHEMA:
        stages = {"type": "object", "additionalProperties": number}
        schema = _object(round_trip_ms=number, server_ms=number, stages_ms=stages)
    elif name == SKIPPED_SCHEMA:
        schema = _object(topic=text, index={"type": "integer"}, reason=text)
    else:
        time = _object(sec={"type": "integer"}, nsec={"type": "integer"})
        vector = _object(x=number, y=number, z=number)
        pose = _object(position=vector, orientation=_object(x=number, y=number, z=number, w=number))
        color = _object(r=number, g=number, b=number, a=number)
        label = _object(pose=pose, billboard=flag, font_size=number, scale_invariant=flag, color=color, text=text)
        none = _array({"type": "object"})
        entity = _object(
            timestamp=time, frame_id=text, id=text, lifetime=time, frame_locked=flag,
            metadata=_array(_object(key=text, value=text)), arrows=none, spheres=none, cylinders=none, lines=none,
            triangles=none, models=none, cubes=_array(_object(pose=pose, size=vector, color=color)),
            texts=_array(label),
        )  # fmt: skip
        deletion = _object(timestamp=time, type={"type": "integer"}, id=text)
        schema = _object(deletions=_array(deletion), entities=_array(entity))
    return json.dumps({"title": name, **schema}).encode()
