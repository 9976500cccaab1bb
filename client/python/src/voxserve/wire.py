"""Defines the protobuf messages of the service and of model folders. It makes their classes from descriptors when it is
imported.

protobuf's generated code checks the version of the runtime that loads it, and registers its files in a pool that the
whole process shares. So two packages with different code for one file, or code for another runtime, fail to load. This
module does not use generated code: wire.binpb holds the descriptors, from which it makes the classes in a pool of its
own. Any protobuf from 3.20 on works, whatever else has been imported. tools/update_wire.py writes wire.binpb and
wire.pyi.
"""

from __future__ import annotations

from importlib import resources
from typing import Any, cast

from google.protobuf import descriptor_pb2, descriptor_pool, message, message_factory

_FILES = descriptor_pb2.FileDescriptorSet()
_FILES.ParseFromString(resources.files("voxserve").joinpath("wire.binpb").read_bytes())


def _make_pool() -> Any:
    pool = descriptor_pool.DescriptorPool()
    for file in _FILES.file:
        pool.AddSerializedFile(file.SerializeToString())
    return pool


_POOL = _make_pool()


def message_class(full_name: str) -> type[message.Message]:
    """Returns the class of a message by its full name, e.g. "voxserve.model.v1.Model". KeyError for an unknown name."""
    descriptor = _POOL.FindMessageTypeByName(full_name)
    if hasattr(message_factory, "GetMessageClass"):  # protobuf 4.22 and later
        return cast("type[message.Message]", message_factory.GetMessageClass(descriptor))
    return cast("type[message.Message]", message_factory.MessageFactory(_POOL).GetPrototype(descriptor))


# Defines in this module every message class under its name, and the values of every enum that is not inside a message.
for _file in _FILES.file:
    if not _file.package.startswith("google.protobuf"):
        globals().update({m.name: message_class(f"{_file.package}.{m.name}") for m in _file.message_type})
        globals().update({value.name: value.number for enum in _file.enum_type for value in enum.value})
