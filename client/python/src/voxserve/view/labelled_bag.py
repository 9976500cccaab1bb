"""Reads an MCAP file that python -m voxserve.bag has written."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from voxserve import input_file
from voxserve.bag.bag_error import BagError
from voxserve.bag.source import CLOUD
from voxserve.point_cloud import PointCloud
from voxserve.view.viewer import Shown, places

_END = "/labelled"


def is_labelled(path: str) -> bool:
    """Returns whether the file is an MCAP file with labelled clouds. Returns False if it cannot be read, since the code
    that opens it next reports why. Raises BagError if the package mcap is not installed.
    """
    if not path.endswith(".mcap") or not Path(path).is_file():
        return False
    try:
        from mcap.reader import make_reader
    except ImportError:
        raise BagError("bags need more packages: pip install 'voxserve[bag]'") from None
    try:
        with input_file.open_regular(path) as file:
            summary = make_reader(file).get_summary()
    except Exception:  # the parser may raise anything for broken bytes
        return False
    return summary is not None and any(channel.topic.endswith(_END) for channel in summary.channels.values())


def read(path: str) -> Iterator[Shown]:
    """Yields the labelled clouds with their boxes and times. Raises BagError if the file is broken."""
    from mcap.reader import make_reader
    from rosbags.typesys import Stores, get_typestore

    store: Any = get_typestore(Stores.ROS2_HUMBLE)
    try:
        with input_file.open_regular(path) as file:
            messages = make_reader(file).iter_messages()
            beside: dict[str, Any] = {}
            for _, channel, message in messages:
                if channel.message_encoding == "json":
                    beside[channel.topic] = json.loads(message.data)
                elif channel.topic.endswith(_END):
                    cloud = store.deserialize_cdr(message.data, CLOUD)
                    topic = channel.topic.removesuffix(_END)
                    yield _shown(message.sequence, cloud, beside.get(f"{topic}/boxes"), beside.get(f"{topic}/timing"))
    except Exception as error:
        raise BagError(f"{path}: the bag cannot be read; it is broken or cut short ({error})") from None


def _shown(index: int, message: Any, scene: Any, timing: Any) -> Shown:
    cloud = PointCloud.from_ros(message)
    points = places(cloud)
    names = [field.name for field in cloud.fields]
    labels = colors = boxes = box_colors = None
    texts: list[str] = []
    label = next((name for name in reversed(names) if name.rstrip("_") == "label"), None)
    rgb = next((name for name in reversed(names) if name.rstrip("_") == "rgb"), None)
    if label is not None and rgb is not None:
        labels = cloud.values(label).astype(np.int64)
        packed = _raw(message, rgb)
        colors = np.stack([packed >> shift & 255 for shift in (16, 8, 0)], axis=1).astype(np.uint8)
    if scene is not None:
        cubes = [cube for entity in scene["entities"] for cube in entity["cubes"]]
        texts = [text["text"] for entity in scene["entities"] for text in entity["texts"]]
        boxes = np.array([_box(cube) for cube in cubes], np.float64).reshape(-1, 7)
        rows = [[round(255 * cube["color"][c]) for c in "rgb"] for cube in cubes]
        box_colors = np.array(rows, np.uint8).reshape(-1, 3)
    times = {} if timing is None else {"server": timing["server_ms"], "round_trip": timing["round_trip_ms"]}
    return Shown(
        index, cloud.stamp_ns, points, labels, colors, boxes, None, box_colors, texts,
        {**times, **({} if timing is None else timing["stages_ms"])},
    )  # fmt: skip


def _raw(message: Any, name: str) -> Any:
    """Returns the 32 bits of a field for each point, as an unsigned integer: [N]."""
    offset = next(field.offset for field in message.fields if field.name == name)
    data = np.asarray(message.data, np.uint8).reshape(-1, message.point_step)[:, offset : offset + 4]
    return np.ascontiguousarray(data).view(">u4" if message.is_bigendian else "<u4")[:, 0]


def _box(cube: Any) -> list[float]:
    place, turn, size = cube["pose"]["position"], cube["pose"]["orientation"], cube["size"]
    yaw = 2 * float(np.arctan2(turn["z"], turn["w"]))
    return [place["x"], place["y"], place["z"], size["x"], size["y"], size["z"], yaw]
