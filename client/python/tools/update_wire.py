"""Writes src/voxserve/wire.binpb and wire.pyi from the .proto files. Run it after a change to proto/; needs protoc."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

from google.protobuf import descriptor_pb2
from google.protobuf.descriptor_pb2 import DescriptorProto, EnumDescriptorProto, FieldDescriptorProto

_PACKAGE = Path(__file__).resolve().parent.parent
_REPOSITORY = _PACKAGE.parent.parent
_FILES = (
    "voxserve/v1/inference.proto",
    "voxserve/v1/admin.proto",
    "voxserve/model/v1/model.proto",
    "voxserve/model/v1/config.proto",
    "google/rpc/status.proto",
    "google/rpc/error_details.proto",
    "grpc/health/v1/health.proto",
)
_SCALARS = {
    FieldDescriptorProto.TYPE_DOUBLE: "float",
    FieldDescriptorProto.TYPE_FLOAT: "float",
    FieldDescriptorProto.TYPE_BOOL: "bool",
    FieldDescriptorProto.TYPE_STRING: "str",
    FieldDescriptorProto.TYPE_BYTES: "bytes",
}
_WELL_KNOWN = {
    ".google.protobuf.Timestamp": "timestamp_pb2.Timestamp",
    ".google.protobuf.Duration": "duration_pb2.Duration",
    ".google.protobuf.Any": "any_pb2.Any",
}
_HEAD = """\
# Written by tools/update_wire.py from the .proto files, where every field is documented.
from collections.abc import Iterable, Mapping, MutableMapping
from typing import ClassVar

from google.protobuf import any_pb2, duration_pb2, timestamp_pb2
from google.protobuf.internal.containers import RepeatedCompositeFieldContainer, RepeatedScalarFieldContainer
from google.protobuf.message import Message

def message_class(full_name: str) -> type[Message]: ...
"""


def compile_descriptors() -> descriptor_pb2.FileDescriptorSet:
    """Returns the descriptors of the .proto files and of the files that they import, each after its imports."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "descriptors"
        command = ["protoc", f"-I{_REPOSITORY / 'proto'}", "--include_imports", f"--descriptor_set_out={out}", *_FILES]
        subprocess.run(command, check=True)
        files = descriptor_pb2.FileDescriptorSet()
        files.ParseFromString(out.read_bytes())
    return files


def type_stubs(files: descriptor_pb2.FileDescriptorSet) -> str:
    """Returns the text of wire.pyi."""
    lines = [_HEAD]
    for file in files.file:
        if file.package != "google.protobuf":
            for enum in file.enum_type:
                lines.append(_enum(enum, ""))
            for message in file.message_type:
                lines.extend(_message(message, ""))
    return "\n".join(lines)


def _message(message: DescriptorProto, indent: str) -> list[str]:
    lines = [f"{indent}class {message.name}(Message):"]
    inner = indent + "    "
    for enum in message.enum_type:
        lines.append(_enum(enum, inner))
    for nested in message.nested_type:
        if not nested.options.map_entry:
            lines.extend(_message(nested, inner)[:-1])
    entries = {f".{nested.name}": nested for nested in message.nested_type if nested.options.map_entry}
    parameters = []
    for field in message.field:
        attribute, parameter = _types(field, entries)
        lines.append(f"{inner}{field.name}: {attribute}")
        parameters.append(f"{field.name}: {parameter} = ...")
    lines.append(f"{inner}def __init__(self{', *, ' if parameters else ''}{', '.join(parameters)}) -> None: ...")
    return [*lines, ""]


def _types(field: FieldDescriptorProto, entries: dict[str, DescriptorProto]) -> tuple[str, str]:
    """Returns the types of a field's attribute and of its constructor's parameter."""
    name = _type_name(field)
    if field.label != FieldDescriptorProto.LABEL_REPEATED:
        return name, f"{name} | None"
    entry = next((e for suffix, e in entries.items() if field.type_name.endswith(suffix)), None)
    if entry is not None:
        pair = ", ".join(_type_name(f) for f in entry.field)
        return f"MutableMapping[{pair}]", f"Mapping[{pair}] | None"
    kind = "Composite" if field.type == FieldDescriptorProto.TYPE_MESSAGE else "Scalar"
    return f"Repeated{kind}FieldContainer[{name}]", f"Iterable[{name}] | None"


def _type_name(field: FieldDescriptorProto) -> str:
    if field.type == FieldDescriptorProto.TYPE_MESSAGE:
        return _WELL_KNOWN.get(field.type_name, field.type_name.rsplit(".", 1)[-1])
    return _SCALARS.get(field.type, "int")


def _enum(enum: EnumDescriptorProto, indent: str) -> str:
    kind = "ClassVar[int]" if indent else "int"
    return "".join(f"{indent}{value.name}: {kind}\n" for value in enum.value).rstrip("\n")


def main() -> int:
    """Writes both files."""
    files = compile_descriptors()
    folder = _PACKAGE / "src" / "voxserve"
    (folder / "wire.binpb").write_bytes(files.SerializeToString(deterministic=True))
    (folder / "wire.pyi").write_text(type_stubs(files), encoding="utf-8")
    print(f"wrote {folder}/wire.binpb and wire.pyi from {len(files.file)} files")
    return 0


if __name__ == "__main__":
    sys.exit(main())
