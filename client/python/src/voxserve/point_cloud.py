"""Describes point clouds as the server takes them: a block of bytes and a list of named fields.

Values are not converted on the way to the server. The server reads the fields that its model names and skips the
others. So a NumPy array, a structured array and a ROS PointCloud2 differ only in their lists of fields.
"""

from __future__ import annotations

import base64
import math
import os
from collections.abc import Iterable, Mapping, Sequence, Sized
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from voxserve import arrays, field_spec, intensity, open3d_cloud
from voxserve.field_spec import Field, FieldSpec, Rename
from voxserve.inputs import Column, PointsLike
from voxserve.row_layout import row_step_of
from voxserve.show import texts

if TYPE_CHECKING:
    from voxserve.show.picture import Picture

DEFAULT_COLUMNS = ("x", "y", "z", "intensity")
_CONVERTED = {*DEFAULT_COLUMNS, "reflectivity"}  # the fields of structured arrays that get a type that can be sent
_TYPE_OF_CODE = {code: name for name, code in field_spec.NUMPY_CODES.items()}
# The types by the datatypes of sensor_msgs/PointField. PCL and newer ROS also have 9 (int64), 10 (uint64) and 11 (bool,
# a byte that is 0 or 1). The server's own 9 is float16.
_TYPE_OF_DATATYPE = {number: name for name, number in field_spec.WIRE_TYPES.items() if number <= 8} | {11: "u8"}

# The attributes of a PointCloud2. `data` comes last, because NumPy raises an error for the data of some arrays.
_OF_MESSAGES = ("fields", "point_step", "row_step", "data")

# Describes the fields of a cloud: a field spec, as text or parsed; new names of its fields ({"intensity":
# "reflectivity"}); or the names of an array's columns.
Fields = str | FieldSpec | Mapping[str, str] | Sequence[str] | None


@dataclass(frozen=True)
class PointCloud:
    """A point cloud: the bytes of its points and their description, with the layout of ROS' PointCloud2. Point i of row
    r begins at byte r * row_step + i * point_step of `data`.

    `data` may be any bytes-like object. It is not copied before the cloud is sent.
    """

    data: bytes | bytearray | memoryview
    num_points: int  # the points of all rows together
    point_step: int  # bytes from one point to the next
    fields: tuple[Field, ...]
    height: int = 0  # the number of rows, which divides num_points; 0 means 1
    row_step: int = 0  # bytes from one row to the next; 0, and where there is no padding: not read (row_layout)
    is_bigendian: bool = False
    stamp_ns: int | None = None  # when the sensor took the cloud, nanoseconds since 1970; None: unknown
    frame_id: str = ""  # the name of the sensor's coordinate frame, for the server's log

    @staticmethod
    def from_array(points: npt.ArrayLike, fields: Fields = None) -> PointCloud:
        """Returns the cloud of an array [N, C] with at least 3 columns, or of a structured array [N], whose fields have
        names. It shares the array's memory if the array is contiguous and little endian, else it copies the values.
        Values of 64-bit integers become float64, which copies them, and masked values become NaN, so that their points
        are left out. Of a structured array only x, y, z, intensity, reflectivity and the fields that `fields` names
        become float64, if they are 64-bit integers or objects. The server refuses another such field by name if its
        model reads it. An array with objects is copied.

        fields: the names of the columns, where "-" skips a column; default: x, y, z and intensity, and further columns
            are skipped. Or a field spec ("x:f32,y:f32,...") with the array's types; of a structured array it sets the
            scale and shift of the fields that it names. Or new names ({"intensity": "reflectivity"}).

        ValueError for another shape, also that of an array [C, N], whose points are columns; for a type that cannot be
        sent; and for fields that do not match the array.
        """
        array = arrays.plain_array(points)
        if array.dtype.names is not None:
            return _with_spec(_from_structured(array, _CONVERTED | _names_in(fields)), fields)
        kind = _TYPE_OF_CODE.get(array.dtype.str[1:])
        if kind is None:
            raise ValueError(f"points are {array.dtype}; {', '.join(_TYPE_OF_CODE)} can be sent")
        if array.ndim != 2 or array.shape[1] < 3:
            raise ValueError(f"points have shape {array.shape}; (N, 3 or more columns) is needed")
        width = array.shape[1]
        spec = _spec_of(fields)
        if spec is not None and spec.layout is not None:
            described = _columns_of_spec(spec, kind, width)
            arrays.check_rows(array.shape, spec.point_step // array.dtype.itemsize)
        else:
            named: Sequence[str] = DEFAULT_COLUMNS[:width]
            if fields is not None and spec is None:
                named = arrays.check_names(fields)
            described = _columns_of_names(named, kind, width)
            arrays.check_rows(array.shape, len(named))
        cloud = PointCloud(_bytes_of(array), array.shape[0], width * array.dtype.itemsize, described)
        return cloud if spec is None else cloud.renamed(spec.renames)

    @staticmethod
    def from_columns(columns: Mapping[str, Column]) -> PointCloud:
        """Returns the cloud of N points whose fields are the columns, an array [N] each: {"x": ..., "y": ..., "z": ...,
        "intensity": ...}. It copies the values. Values of 64-bit integers become float64, and masked or missing values
        become NaN, so that their points are left out. The cloud has no values of a column of texts or dates; the server
        refuses it by name if its model reads that column.

        ValueError for other shapes, and if x, y, z or intensity have a type that cannot be sent.
        """
        values = {name: arrays.plain_array(column) for name, column in columns.items()}
        if not values:
            raise ValueError("no columns; x, y and z at least are needed")
        if not all(isinstance(name, str) and name for name in values):
            raise ValueError(f"columns are named {list(values)[:8]}; each needs a text, x, y and z among them")
        shapes = {name: array.shape for name, array in values.items()}
        if len(set(shapes.values())) != 1 or any(array.ndim != 1 for array in values.values()):
            raise ValueError(f"columns must be one-dimensional and equally long, not {shapes}")
        sent: dict[str, npt.NDArray[Any]] = {}
        for name, array in values.items():
            if array.dtype.kind == "b":
                sent[name] = array.view(np.uint8)
            elif array.dtype.str[1:] in _TYPE_OF_CODE:
                sent[name] = array
            else:
                _check_unsent(name, array.dtype)
        if not sent:
            raise ValueError(f"none of the columns {', '.join(values)} has a type that can be sent")
        dtype = np.dtype([(name, array.dtype.newbyteorder("<")) for name, array in sent.items()])
        packed = np.empty(next(iter(shapes.values())), dtype)
        for name, array in sent.items():
            packed[name] = array
        cloud = _from_structured(packed, set())
        unsent = tuple(Field(name, field_spec.NO_TYPE) for name in values if name not in sent)
        return replace(cloud, fields=(*cloud.fields, *unsent))

    @staticmethod
    def from_ros(message: Any) -> PointCloud:
        """Returns the cloud of a sensor_msgs/PointCloud2 of ROS 1 or 2, of an object with the same attributes, or of a
        dictionary with them, whose data may be base64 as rosbridge sends it. The values are not converted. An intensity
        or reflectivity of type uint8 or uint16 gets the scale that makes it 0..1 (voxserve.intensity); scaled() sets
        another. The server cannot read fields of int64 and uint64 (datatypes 9 and 10) and of datatypes that PointField
        does not define: it skips them, and refuses them by name if its model reads them.

        ValueError if the message or a field lacks an attribute or has one of another type, and if the message has data,
        but a width or height of 0.
        """
        return _of_message(message).with_shares()

    def field(self, name: str) -> Field | None:
        """Returns the field with that name, or the only one whose name differs only in upper and lower case; None if
        the cloud has neither. The server finds a model's fields by the same rule.
        """
        exact = next((field for field in self.fields if field.name == name), None)
        similar = [field for field in self.fields if field.name.lower() == name.lower()]
        return similar[0] if exact is None and len(similar) == 1 else exact

    def scaled(self, scales: Mapping[str, float]) -> PointCloud:
        """Returns a cloud of the same bytes, in which the fields that `scales` names have these scales (Field.scale):
        {"intensity": 1 / 255}. ValueError if the cloud lacks one of the fields.
        """
        by_name: dict[str, float] = {}
        for name, scale in scales.items():
            own = self.field(name)
            if own is None:
                raise ValueError(f"a scale for '{name}', but the cloud's fields are {self._names()}")
            by_name[own.name] = float(scale)
        return replace(self, fields=tuple(replace(f, scale=by_name.get(f.name, f.scale)) for f in self.fields))

    def described_by(self, spec: FieldSpec) -> PointCloud:
        """Returns a cloud of the same bytes, in which fields have the scale and shift of the spec's entries with the
        same names, and then the spec's new names. ValueError if the cloud lacks one of them, or has it with another
        type.
        """
        entries: dict[str, Field] = {}
        for entry in spec.fields:
            own = self.field(entry.name)
            if own is None:
                raise ValueError(f"the fields name '{entry.name}', but the points have {self._names()}")
            if own.type != entry.type:
                raise ValueError(f"the fields say {entry.name}:{entry.type}, but the points have {own.name}:{own.type}")
            entries[own.name] = entry
        fields = (replace(f, scale=entries[f.name].scale, shift=entries[f.name].shift) if f.name in entries else f
                  for f in self.fields)  # fmt: skip
        return replace(self, fields=tuple(fields)).renamed(spec.renames)

    def with_shares(self, spec: FieldSpec | None = None) -> PointCloud:
        """Returns a cloud of the same bytes, in which integer intensities have the scale that makes them 0..1
        (voxserve.intensity), unless the spec says their scale.
        """
        named = spec.scaled if spec else set()
        scales = {f.name: intensity.scale_of(f.name, f.type) for f in self.fields if f.name.lower() not in named}
        return self.scaled({name: scale for name, scale in scales.items() if scale != 1})

    def renamed(self, renames: Sequence[Rename]) -> PointCloud:
        """Returns a cloud of the same bytes, in which fields have new names. A field that had a new name before is left
        out. ValueError if the cloud lacks one of the fields.
        """
        by_source: dict[str, Rename] = {}
        for rename in renames:
            source = self.field(rename.source)
            if source is None:
                raise ValueError(f"the fields say {rename.name}={rename.source}, but the points have {self._names()}")
            if source.name in by_source:
                raise ValueError(f"the field '{source.name}' gets two names")
            by_source[source.name] = rename
        names = {rename.name for rename in renames}
        fields = []
        for field in self.fields:
            if field.name in by_source:
                new = by_source[field.name]
                scale = field.scale if new.scale is None else new.scale
                shift = field.shift if new.shift is None else new.shift
                fields.append(replace(field, name=new.name, scale=scale, shift=shift))
            elif field.name not in names:
                fields.append(field)
        return replace(self, fields=tuple(fields))

    def values(self, name: str) -> npt.NDArray[np.float32]:
        """Returns the first value of a field for every point, raw * scale + shift: float32 [num_points]. ValueError if
        the cloud does not have the field, or its sizes do not fit together (voxserve.row_layout).
        """
        field = self.field(name)
        if field is None:
            raise ValueError(f"there is no field '{name}'; the cloud has {self._names()}")
        if not field.value_bytes:
            raise ValueError(f"field '{name}' has a type that cannot be sent")
        rows, size = max(1, self.height), memoryview(self.data).nbytes
        row_step = row_step_of(self.num_points, rows, self.point_step, self.row_step, size)
        if field.offset + field.value_bytes > self.point_step:
            raise ValueError(f"field '{name}' at offset {field.offset} does not fit a point of {self.point_step} bytes")
        if self.num_points == 0:
            return np.zeros(0, np.float32)
        order = ">" if self.is_bigendian else "<"
        dtype = np.dtype(order + field_spec.NUMPY_CODES[field.type])
        strides = (row_step, self.point_step)
        raw: npt.NDArray[Any] = np.ndarray((rows, self.num_points // rows), dtype, self.data, field.offset, strides)
        if field.scale == 1 and field.shift == 0:
            return raw.reshape(-1).astype(np.float32)
        return (raw.reshape(-1).astype(np.float64) * field.scale + field.shift).astype(np.float32)

    def picture(self, size: int = 400) -> Picture:
        """Returns a picture of the cloud from above, coloured by height; notebooks show it. size: the pixels of its
        longer side. ValueError if the cloud lacks x, y or z.
        """
        from voxserve.show import drawing

        return drawing.picture_of_cloud(self, size)

    def to_pandas(self) -> Any:
        """Returns a pandas.DataFrame with a column per field: float32, values as the network gets them. ImportError
        without pandas.
        """
        from voxserve.show import tables

        return tables.of_cloud(self)

    def _repr_png_(self) -> bytes | None:
        has_positions = all(self.field(name) is not None for name in ("x", "y", "z"))
        return self.picture().png() if self.num_points and has_positions else None

    def __repr__(self) -> str:
        return texts.of_cloud(self)

    def _names(self) -> str:
        return ", ".join(f.name for f in self.fields) or "none"


def as_cloud(points: PointsLike, fields: Fields = None) -> PointCloud:
    """Returns the cloud of what a caller passes as points: a PointCloud, an array, a tensor, a mapping of names to
    columns, a table with named columns (pandas, polars, pyarrow), a cloud of Open3D, Voxels, or a PointCloud2 message.
    fields: as in PointCloud.from_array. ValueError if it is none of them.
    """
    given: Any = points
    # voxserve.Voxels has the method cloud(). The class is tested, since a table may have a column named "cloud".
    if callable(getattr(type(given), "cloud", None)):
        given = given.cloud()
    if isinstance(given, PointCloud):
        return _with_spec(given, fields)
    if isinstance(given, Mapping) and given.keys() >= set(_OF_MESSAGES):
        given = _object_of(given)
    if isinstance(given, Mapping):
        return _with_spec(PointCloud.from_columns(given), fields)
    if all(hasattr(given, name) for name in _OF_MESSAGES):
        return _with_spec(_of_message(given), fields).with_shares(_spec_of(fields))
    if isinstance(given, (str, os.PathLike)):
        raise ValueError(f"points are the path {os.fspath(given)}; voxserve.read(path) reads a scan")
    columns = arrays.named_columns(given)
    if columns is None and not isinstance(given, np.ndarray):
        columns = open3d_cloud.columns_of(given)
    if columns is not None:
        return _with_spec(PointCloud.from_columns(columns), fields)
    return PointCloud.from_array(given, fields)


def _object_of(value: Any) -> Any:
    """Returns an object with the entries of a dictionary as attributes; another value as it is."""
    if isinstance(value, Mapping):
        return SimpleNamespace(**{str(name): entry for name, entry in value.items()})
    return value


def _of_message(message: Any) -> PointCloud:
    """Returns the cloud of a PointCloud2 message, whose integer intensities are not scaled."""
    message = _object_of(message)
    _check_attributes(message, "PointCloud2", (*_OF_MESSAGES, "width", "height"))
    if not isinstance(message.fields, Iterable):
        raise ValueError(f"the fields of a PointCloud2 are a {type(message.fields).__name__}; a list is needed")
    names = ("width", "height", "point_step", "row_step")
    width, height, point_step, row_step = (_integer(getattr(message, name), name) for name in names)
    header = _object_of(getattr(message, "header", None))
    data = _data_of(message.data)
    if len(data) and not (width and height):
        raise ValueError(
            f"width {width} x height {height} are no points, but the message has {len(data)} bytes of data; the height "
            "of a cloud without rows is 1"
        )
    return PointCloud(
        data=data,
        num_points=width * height,
        point_step=point_step,
        fields=tuple(_field_of(_object_of(field)) for field in message.fields),
        height=height,
        row_step=row_step,
        is_bigendian=bool(getattr(message, "is_bigendian", False)),
        stamp_ns=_stamp_ns(_object_of(getattr(header, "stamp", None))),
        frame_id=str(getattr(header, "frame_id", "")),
    )


def _field_of(field: Any) -> Field:
    """Returns the field that a PointField describes."""
    _check_attributes(field, "PointField", ("name", "offset", "datatype", "count"))
    offset, datatype, count = (_integer(getattr(field, name), name) for name in ("offset", "datatype", "count"))
    return Field(str(field.name), _TYPE_OF_DATATYPE.get(datatype, field_spec.NO_TYPE), offset, max(1, count))


def _data_of(data: Any) -> bytes | bytearray | memoryview:
    """Returns the data of a PointCloud2 as bytes."""
    if isinstance(data, (bytes, bytearray, memoryview)):
        return data
    problem = ""
    try:
        if isinstance(data, str):
            return base64.b64decode(data, validate=True)
        if isinstance(data, Sized):  # bytes(N) would be N bytes of 0
            return bytes(data)  # type: ignore[call-overload,no-any-return]
    except (TypeError, ValueError) as error:
        problem = f" ({error})"
    raise ValueError(
        f"the data of a PointCloud2 is a {type(data).__name__}; bytes, a list of bytes or base64 is needed{problem}"
    )


def _check_attributes(value: Any, kind: str, names: Sequence[str]) -> None:
    lacking = sorted(name for name in names if not hasattr(value, name))
    if lacking:
        raise ValueError(f"a {type(value).__name__} is no {kind}: it has no {', '.join(lacking)}")


def _integer(value: Any, name: str) -> int:
    try:
        return int(value)
    except (TypeError, ValueError, OverflowError):
        raise ValueError(f"the {name} of a PointCloud2 is {str(value)[:64]}, which is no whole number") from None


def _with_spec(cloud: PointCloud, fields: Fields) -> PointCloud:
    if fields is None:
        return cloud
    spec = _spec_of(fields)
    if spec is None:
        raise ValueError(f"these points name their fields ({cloud._names()}); fields may only be a field spec here")
    return cloud.described_by(spec)


def _spec_of(fields: Fields) -> FieldSpec | None:
    """Returns the field spec that `fields` is; None for None and for names of columns."""
    if isinstance(fields, str):
        return field_spec.parse(fields)
    if isinstance(fields, Mapping):
        return field_spec.renaming(fields)
    return fields if isinstance(fields, FieldSpec) else None


def _names_in(fields: Fields) -> set[str]:
    """Returns the names of an array's fields that a field spec or new names describe, in lower case."""
    spec = _spec_of(fields)
    if spec is None:
        return set()
    return {each.name.lower() for each in spec.fields} | {each.source.lower() for each in spec.renames}


def _columns_of_names(names: Sequence[str], kind: str, width: int) -> tuple[Field, ...]:
    if len(names) > width:
        raise ValueError(f"{len(names)} fields for {width} columns")
    fields = [Field(name, kind, index) for index, name in enumerate(names)]
    return tuple(replace(f, offset=f.offset * f.value_bytes) for f in fields if f.name != "-")


def _columns_of_spec(spec: FieldSpec, kind: str, width: int) -> tuple[Field, ...]:
    size = int(field_spec.NUMPY_CODES[kind][1:])
    for entry in spec.fields:
        if entry.type != kind or entry.offset % size:
            raise ValueError(f"the fields say {entry.name}:{entry.type}, but the array's columns are all {kind}")
    if spec.point_step > width * size:
        raise ValueError(
            f"the fields describe {spec.point_step} bytes, but a row of {width} columns has {width * size}"
        )
    return spec.fields


def _from_structured(array: npt.NDArray[Any], wanted: set[str]) -> PointCloud:
    """Returns the cloud of a structured array. wanted: as in _with_types_to_send()."""
    if array.ndim != 1:
        raise ValueError(f"the structured array has shape {array.shape}; (N,) is needed")
    given = array.dtype
    array = _with_types_to_send(array, wanted)
    orders = {
        base.byteorder for base in (_base(dtype) for dtype, *_ in _members(array.dtype).values()) if base.itemsize > 1
    }
    if len(orders) > 1:
        array = array.astype(array.dtype.newbyteorder("<"))
        orders = {"<"}
    sent = {name: entry for name, entry in _members(array.dtype).items() if _base(entry[0]).str[1:] in _TYPE_OF_CODE}
    fields = [
        Field(name, _TYPE_OF_CODE[_base(dtype).str[1:]], int(offset), math.prod(dtype.shape))
        for name, (dtype, offset, *_) in sent.items()
        if math.prod(dtype.shape) > 0
    ]
    for name in given.names or ():
        if name not in sent:
            _check_unsent(name, given[name].base)
            fields.append(Field(name, field_spec.NO_TYPE))
    return PointCloud(_bytes_of(array), len(array), array.dtype.itemsize, tuple(fields), is_bigendian=orders == {">"})


def _check_unsent(name: str, dtype: np.dtype[Any]) -> None:
    """Raises ValueError if a column whose type cannot be sent is one that nearly every model reads."""
    if name.lower() in DEFAULT_COLUMNS:
        raise ValueError(f"column '{name}' is {dtype}; {', '.join(_TYPE_OF_CODE)} can be sent")


def _with_types_to_send(array: npt.NDArray[Any], wanted: set[str]) -> npt.NDArray[Any]:
    """Returns a structured array in which bool is uint8, objects are left out, and those of the wanted fields (in lower
    case) that are integers of 8 bytes, longdouble or objects that are numbers are float64. It shares the array's memory
    if no field is left out or becomes float64.
    """
    names = array.dtype.names or ()
    types = {name: array.dtype[name] for name in names}
    types |= {name: np.dtype((np.uint8, dtype.shape)) for name, dtype in types.items() if dtype.base.kind == "b"}
    converted: dict[str, npt.NDArray[Any]] = {}
    for name in names:
        base = types[name].base
        if name.lower() in wanted and base.kind in "iufO" and base.str[1:] not in _TYPE_OF_CODE:
            column = arrays.plain_array(array[name])
            if column.dtype.kind == "f":
                converted[name] = column
                types[name] = np.dtype((column.dtype, types[name].shape))
    if not converted and not array.dtype.hasobject:
        offsets = [_members(array.dtype)[name][1] for name in names]
        layout = {"names": names, "formats": list(types.values()), "offsets": offsets, "itemsize": array.dtype.itemsize}
        return array.view(np.dtype(layout))  # type: ignore[call-overload]
    kept = [(name, dtype) for name, dtype in types.items() if not dtype.hasobject]
    made = np.empty(array.shape, kept)
    for name, _ in kept:
        made[name] = converted[name] if name in converted else array[name]
    return made


def _members(dtype: np.dtype[Any]) -> Mapping[str, tuple[Any, ...]]:
    return dtype.fields or {}


def _base(dtype: np.dtype[Any]) -> np.dtype[Any]:
    return dtype.base


def _bytes_of(array: npt.NDArray[Any]) -> memoryview:
    """Returns the array's own bytes if it is contiguous and little endian, else those of such a copy."""
    if array.dtype.names is None:
        array = np.asarray(array, array.dtype.newbyteorder("<"))
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data


def _stamp_ns(stamp: Any) -> int | None:
    """Returns the nanoseconds of a ROS 1 (secs, nsecs) or ROS 2 (sec, nanosec) time. Returns None for a time of 0,
    which ROS sends for an unknown time.
    """
    seconds = getattr(stamp, "sec", getattr(stamp, "secs", None))
    nanoseconds = getattr(stamp, "nanosec", getattr(stamp, "nsecs", None))
    if seconds is None or nanoseconds is None:
        return None
    return _integer(seconds, "stamp") * 1_000_000_000 + _integer(nanoseconds, "stamp") or None
