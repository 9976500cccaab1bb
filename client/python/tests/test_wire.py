"""Tests the message classes, which need no generated stubs: they match proto/, and other loaded packages do no harm."""

from __future__ import annotations

import importlib.util
import shutil
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from google.protobuf import descriptor_pb2

from voxserve import wire

PACKAGE = Path(__file__).resolve().parents[1]


def update_wire() -> ModuleType:
    spec = importlib.util.spec_from_file_location("update_wire", PACKAGE / "tools" / "update_wire.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def normalised(files: Any) -> dict[str, bytes]:
    """Returns descriptors without the parts that differ between releases of protoc."""
    result = {}
    for file in files.file:
        pending = list(file.message_type)
        while pending:
            message = pending.pop()
            pending += message.nested_type
            for field in message.field:
                field.ClearField("json_name")
        if not file.package.startswith("google.protobuf"):
            result[file.name] = file.SerializeToString(deterministic=True)
    return result


@pytest.mark.skipif(shutil.which("protoc") is None, reason="protoc is not installed")
def test_descriptors_and_types_are_those_of_the_proto_files() -> None:
    tool = update_wire()
    packaged = descriptor_pb2.FileDescriptorSet.FromString((PACKAGE / "src/voxserve/wire.binpb").read_bytes())
    compiled = tool.compile_descriptors()
    assert normalised(packaged) == normalised(compiled), "run client/python/tools/update_wire.py"
    assert (PACKAGE / "src/voxserve/wire.pyi").read_text() == tool.type_stubs(compiled)


def test_our_messages_stay_out_of_the_shared_pool() -> None:
    from google.protobuf import descriptor_pool

    with pytest.raises(KeyError):
        descriptor_pool.Default().FindMessageTypeByName("voxserve.v1.InferRequest")


def test_another_package_may_define_the_same_messages_differently() -> None:
    from google.protobuf import descriptor_pool

    file = descriptor_pb2.FileDescriptorProto(name="voxserve/v1/inference.proto", package="voxserve.v1")
    file.message_type.add(name="InferRequest")
    pool = descriptor_pool.Default()
    pool.AddSerializedFile(file.SerializeToString())
    assert not pool.FindMessageTypeByName("voxserve.v1.InferRequest").fields
    assert wire.InferRequest(model="m").model == "m"


def test_round_trip_with_presence_maps_and_well_known_types() -> None:
    info = wire.ErrorInfo(reason="R", metadata={"a": "b"})
    status = wire.Status(code=3)
    status.details.add().Pack(info)
    unpacked = wire.ErrorInfo()
    assert wire.Status.FromString(status.SerializeToString()).details[0].Unpack(unpacked)
    assert unpacked == info
    assert not wire.PointField().HasField("scale")
    assert wire.PointField(scale=0).HasField("scale")


def test_unknown_message_names() -> None:
    with pytest.raises(KeyError):
        wire.message_class("voxserve.v1.Nothing")
