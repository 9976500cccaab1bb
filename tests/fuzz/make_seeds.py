"""Writes the first inputs of each fuzzer's corpus: one that the parser accepts and a few variants of it.

    PYTHONPATH=client/python/src python tests/fuzz/make_seeds.py FOLDER

The corpus in this repository also has inputs that a fuzzer found later because they reach more code.
"""

import io
import json
import pathlib
import struct
import sys

import numpy as np
from voxserve import wire

ROOT = pathlib.Path(__file__).resolve().parents[2]


def cloud() -> "wire.PointCloud":
    message = wire.PointCloud(num_points=3, point_step=16, data=bytes(range(48)))
    for i, name in enumerate(("x", "y", "z", "intensity")):
        message.fields.add(name=name, offset=4 * i, type=wire.POINT_FIELD_TYPE_FLOAT32, count=1, scale=0.5, shift=1.0)
    message.stamp.seconds = 1_700_000_000
    return message


def requests() -> dict[str, bytes]:
    request = wire.InferRequest(model="minkunet", request_id="a", cloud=cloud(), outputs=["labels", "trunk"])
    request.sample.num_points = 2
    config = wire.InferStreamRequest(config=wire.StreamConfig(model="minkunet"))
    frame = wire.InferStreamRequest(frame=wire.StreamFrame(frame_id=7, cloud=cloud()))
    frame.frame.pose.x = 1.0
    frame.frame.pose.qw = 1.0
    part = wire.InferStreamRequest(part=wire.FramePart(frame_id=7, cloud=cloud(), index=2, is_last=True))
    part.part.pose.qw = 1.0
    return {
        "infer_request/whole": request.SerializeToString(),
        "infer_request/empty_cloud": wire.InferRequest(cloud=wire.PointCloud()).SerializeToString(),
        "infer_request/no_cloud": wire.InferRequest(model="m").SerializeToString(),
        "stream_request/config": config.SerializeToString(),
        "stream_request/frame": frame.SerializeToString(),
        "stream_request/part": part.SerializeToString(),
    }


def safetensors(tensors: dict[str, np.ndarray]) -> bytes:
    header, data = {}, b""
    for name, values in tensors.items():
        dtype = {"float32": "F32", "float16": "F16", "int64": "I64"}[values.dtype.name]
        header[name] = {"dtype": dtype, "shape": values.shape, "data_offsets": [len(data), len(data) + values.nbytes]}
        data += values.tobytes()
    return with_size(json.dumps(header).encode()) + data


def with_size(header: bytes) -> bytes:
    """Returns the beginning of a safetensors file: the header's size and the header."""
    return struct.pack("<Q", len(header)) + header


DEEP = b"[" * 120_000

SMALL_MODEL = """
dimension: 3
nodes { name: "voxels" voxelize { voxel_size: [0.1, 0.1, 0.1] rounding: ROUNDING_FLOOR origin: ORIGIN_ZERO
  reduce: REDUCE_MEAN features { name: "x" unit: "m" } } }
nodes { name: "conv" inputs: "voxels" sparse_conv { kind: KIND_SUBMANIFOLD kernel_size: [3, 3, 3] out_channels: 2 } }
nodes { name: "relu" inputs: "conv" activation { function: FUNCTION_RELU } }
nodes { name: "points" inputs: "relu" inputs: "voxels" voxel_to_point {} }
nodes { name: "labels" inputs: "points" argmax {} }
outputs { kind: KIND_LABELS node: "labels" }
"""


def models() -> dict[str, bytes]:
    weights = {"conv.weight": np.zeros((27, 1, 2), np.float32)}
    files = {
        "safetensors/three": safetensors(
            {"a": np.ones((2, 3), np.float32), "b": np.ones(3, np.float16), "c": np.zeros(1, np.int64)}
        ),
        "safetensors/none": safetensors({}),
        "model/small": SMALL_MODEL.encode() + b"\0" + safetensors(weights),
        "model_config/small": bytes([2])
        + b'classes { id: 0 name: "road" color: "#804080" } ignore_label: 255\nbatching { max_batch_requests: 4 }',
        "model_config/empty": bytes([0]),
        # Nested so deeply that a parser which calls itself for each level would overflow its stack.
        "model/deep": b'nodes { name: "a" } a: ' + DEEP,
        "model_config/deep": bytes([2]) + b"max_points: 1 a: " + DEEP,
        "safetensors/deep": with_size(b'{"a":' + DEEP),
        "safetensors/sizes_within_sizes": with_size(
            b'{"a":{"dtype":"F32","data_offsets":[0,0],"shape":[0,[],' + b"[" * 20_000 + b"]" * 20_000 + b"]}}"
        ),
    }
    for folder in sorted((ROOT / "tests/golden/networks").iterdir()):
        text = (folder / "1/model.textproto").read_bytes()
        # The weights are left out, because large inputs slow the fuzzer down. The text alone has their shapes.
        if len(text) < 8192:
            files[f"model/{folder.name}"] = text
    return files


PLAN = """
key { model_digest: "%s" device: "NVIDIA H200" compute_capability: "9.0" cuda_version: "13.0" engine_version: "0.1.0"
  dtype: "float16" }
buckets { min_voxels: 0 max_voxels: 100000 num_scans: 3 default_ms: 1.5 tuned_ms: 1.25
  convs { node: "conv" map_search: MAP_SEARCH_HASH dataflow: DATAFLOW_IMPLICIT_GEMM block_rows: 128 split_k: 2 } }
buckets { min_voxels: 100000 num_scans: 1 default_ms: 3 tuned_ms: 2
  convs { node: "conv" dataflow: DATAFLOW_GATHER_GEMM_SCATTER grouping: GROUPING_ADAPTIVE epsilon: 0.25 bmm_max_rows: 9 } }
""" % ("0123456789abcdef" * 4)


def scans() -> dict[str, bytes]:
    points = np.arange(12, dtype=np.float32).reshape(3, 4)
    npy, structured = io.BytesIO(), io.BytesIO()
    np.save(npy, points)
    np.save(structured, np.zeros(3, [("x", "<f4"), ("y", "<f4"), ("z", "<f4"), ("ring", "<u2"), ("t", "<i8")]))
    pcd = (
        b"VERSION 0.7\nFIELDS x y z _ n\nSIZE 4 4 4 1 2\nTYPE F F F U I\nCOUNT 1 1 1 3 2\nWIDTH 4\nHEIGHT 2\n"
        b"VIEWPOINT 0 0 0 1 0 0 0\nPOINTS 8\n"
    )
    packed = b"\x00\x61\xe0\x8e\x00"  # The LZF encoding of 152 bytes of "a".
    ply = (
        b" 1.0\ncomment x\nelement sensor 1\nproperty list uchar int id\nelement vertex 2\nproperty float x\n"
        b"property float y\nproperty double z\nproperty uchar scalar_Intensity\nend_header\n"
    )
    lists = (
        b" 1.0\nelement vertex 2\nproperty float x\nproperty list uint float64 d\nproperty float y\nend_header\n"
    )
    vertex = struct.pack("<fIdf", 1, 1, 2, 3)
    return {
        "npy/table": npy.getvalue(),
        "npy/structured": structured.getvalue(),
        "pcd/ascii": pcd + b"DATA ascii\n" + b"1 -2.5 3e2 1 2 3 7 8\n" * 8,
        "pcd/binary": pcd + b"DATA binary\n" + b"a" * (8 * 19),
        "pcd/compressed": pcd + b"DATA binary_compressed\n" + struct.pack("<II", len(packed), 152) + packed,
        "pcd/sparse_header": b"FIELDS x y z b\nSIZE 4 4 8 1\nTYPE F F F B\nCOUNT 1 1 0 1\nPOINTS 2\nDATA ascii\n"
        b"-nan(ind) 1.#INF00 1\n2 -1.#IND 0\n",
        "pcd/no_size": b"FIELDS x y z\nWIDTH 2\nDATA binary\n" + b"a" * 24,
        "ply/list_ascii": b"ply\nformat ascii" + lists + b"1 2 3 4 5\n6 0 7\n",
        "ply/list_binary": b"ply\nformat binary_little_endian" + lists + vertex + vertex,
        "ply/ascii": b"ply\nformat ascii" + ply + b"2 1 2\n1 2.5 nan 3\n4 5 6 7\n",
        "ply/little_endian": b"ply\nformat binary_little_endian" + ply + b"\x01" + b"a" * 4 + b"b" * 34,
        "ply/big_endian": b"ply\nformat binary_big_endian" + ply + b"\x01" + b"a" * 4 + b"b" * 34,
        "raw_points/kitti": b"x:f32,y:f32,z:f32,intensity:f32\n" + points.tobytes(),
        "raw_points/renamed": b"x:f32,y:f32,z:f32,r:f32,intensity=r*0.5+1,x=Y\n" + points.tobytes(),
        "raw_points/spec": b"x:i16*0.01+5,y:i16,z:f16,-:u8,intensity:u8*0.0039\n" + b"a" * 24,
    }


HTTP = {
    "http/metrics": b"GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n",
    "http/head": b"HEAD / HTTP/1.0\r\n\r\n",
    "http/ready": b"GET /readyz?x=%20 HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n",
    "http/post": b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabc",
    "http/chunked": b"PUT /a HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
    "http/nothing": b"\r\n",
}


def main(folder: str) -> None:
    plans = {"plan/two_buckets": PLAN.encode(), "plan/deep": b"buckets { } a: " + DEEP}
    inputs = {**requests(), **models(), **plans, **scans(), **HTTP}
    for name, contents in inputs.items():
        path = pathlib.Path(folder) / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(contents)


if __name__ == "__main__":
    main(sys.argv[1])
