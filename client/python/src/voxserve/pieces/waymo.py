"""Reads the range images of the Waymo Open Dataset, version 2: lidar/SEGMENT.parquet.

A file has the range images of a drive of 20 s: one for each frame, laser and return. Its neighbours are read too:

    lidar_calibration/SEGMENT.parquet   needed: where each laser is, and how its beams are inclined
    vehicle_pose/SEGMENT.parquet        where the vehicle is in each frame; needed for more than one frame
    lidar_pose/SEGMENT.parquet          where it is at each pixel of the top laser's images; used if it is there

With poses of the vehicle the points are in the drive's world coordinates, else in those of the vehicle. A pixel (row,
column) of an image of W columns becomes a point as waymo_open_dataset/v2/perception/utils/lidar_utils.py and
utils/range_image_utils.py define it:

    azimuth = ((W - column - 1/2) / W * 2 - 1) * pi - atan2(E[1, 0], E[0, 0])     E: the laser's pose in the vehicle
    point = E * (range cos(azimuth) cos(inclination), range sin(azimuth) cos(inclination), range sin(inclination))

The first row has the last inclination. Pixels with a range of 0 or less are no points. The no-label zones are a column.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from voxserve.pieces.reader import Contents, Piece, PieceReader, check_file, columns_of, damaged, library

Matrix = npt.NDArray[np.float64]
_IMAGE = "[LiDARComponent].range_image_return{}."
_CALIBRATION = "[LiDARCalibrationComponent]."
_VEHICLE = "[VehiclePoseComponent].world_from_vehicle.transform"
_PIXEL_POSE = "[LiDARPoseComponent].range_image_return1."
_TIME, _LASER = "key.frame_timestamp_micros", "key.laser_name"
_DTYPES = {
    "intensity": "f4", "elongation": "f4", "no_label_zone": "f4", "return_number": "u1", "laser_name": "u1",
    "frame_timestamp_micros": "i8", "row": "u2", "column": "u2",
}  # fmt: skip


def has_range_images(path: str | os.PathLike[str]) -> bool:
    """Returns whether a Parquet file has range images; False for a file that cannot be read."""
    try:
        return _IMAGE.format(1) + "values" in library("pyarrow.parquet").read_schema(os.fspath(path)).names
    except Exception:  # the reader of tables says what is wrong
        return False


class WaymoReader(PieceReader):
    """Reads lidar/SEGMENT.parquet. ValueError if it, or a file that it needs, is damaged or not there."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = os.fspath(path)
        check_file(path)
        self._file = _open(Path(path))
        self._returns = [n for n in (1, 2) if _IMAGE.format(n) + "values" in self._file.schema_arrow.names]
        calibration = self._neighbour("lidar_calibration")
        if calibration is None:
            missing = self._path_of("lidar_calibration")
            raise ValueError(f"{self.path}: the calibration of its lasers, {missing}, is needed")
        self._lasers = {int(row[_LASER]): row for row in _rows(calibration)}
        poses = self._neighbour("vehicle_pose")
        self._vehicle = None if poses is None else {row[_TIME]: row[_VEHICLE] for row in _rows(poses)}
        self._pixels = self._neighbour("lidar_pose")
        self._groups = {} if self._pixels is None else _groups(self._pixels)
        self._group: tuple[int, dict[Any, Any]] = (-1, {})  # the row group of the last pixels' poses
        if self._vehicle is None and len(set(self._column(_TIME))) > 1:
            missing = self._path_of("vehicle_pose")
            raise ValueError(f"{self.path}: it has several frames, and the vehicle's poses, {missing}, are not there")
        try:
            number = sum(int(np.count_nonzero(image[..., 0] > 0)) for _, _, image in self._images())
        except ValueError:
            raise
        except Exception as error:
            raise damaged(path, error) from None
        self.contents = Contents(number, {name: np.dtype(kind) for name, kind in _DTYPES.items()})

    def _path_of(self, component: str) -> Path:
        path = Path(self.path)
        return path.parent.parent / component / path.name

    def _neighbour(self, component: str) -> Any:
        path = self._path_of(component)
        return _open(path) if path.exists() else None

    def _column(self, name: str) -> list[Any]:
        values: list[Any] = self._file.read(columns=[name]).column(0).to_pylist()
        return values

    def _images(self) -> Iterator[tuple[dict[str, Any], int, npt.NDArray[np.float32]]]:
        """Yields each image [rows, columns, 4] with the keys of its frame and laser, and the number of its return."""
        columns = [_TIME, _LASER, *(_IMAGE.format(n) + part for n in self._returns for part in ("values", "shape"))]
        for row in _rows(self._file, columns):
            for number in self._returns:
                prefix = _IMAGE.format(number)
                if row[prefix + "values"] is not None:
                    yield row, number, self._shaped(row, prefix, 4)

    def _shaped(self, row: dict[str, Any], prefix: str, channels: int) -> npt.NDArray[np.float32]:
        values, shape = np.asarray(row[prefix + "values"], np.float32), row[prefix + "shape"]
        if shape is None or len(shape) != 3 or shape[2] != channels or int(np.prod(shape)) != len(values):
            raise ValueError(f"{self.path}: an image of {len(values)} values has the shape {shape}")
        return values.reshape(shape)

    def _pieces(self, num_points: int) -> Iterator[Piece]:
        for row, number, image in self._images():
            points = self._points(row, image)
            for first in range(0, len(points[0]), num_points):
                rows = slice(first, first + num_points)
                xyz, pixels, places = points[0][rows], points[1][rows], points[2][rows]
                columns: dict[str, npt.NDArray[Any]] = {
                    "intensity": pixels[:, 1],
                    "elongation": pixels[:, 2],
                    "no_label_zone": pixels[:, 3],
                    "return_number": np.full(len(xyz), number, np.uint8),
                    "laser_name": np.full(len(xyz), row[_LASER], np.uint8),
                    "frame_timestamp_micros": np.full(len(xyz), row[_TIME], np.int64),
                    "row": places[:, 0].astype(np.uint16),
                    "column": places[:, 1].astype(np.uint16),
                }
                yield Piece(xyz, columns_of(columns))

    def _points(
        self, row: dict[str, Any], image: npt.NDArray[np.float32]
    ) -> tuple[Matrix, npt.NDArray[np.float32], npt.NDArray[np.int64]]:
        """Returns the points of an image [N, 3], their pixels [N, 4], and these pixels' rows and columns [N, 2]."""
        extrinsic, inclinations = self._calibration(int(row[_LASER]), len(image))
        places = np.argwhere(image[..., 0] > 0)
        pixels = image[places[:, 0], places[:, 1]]
        width = image.shape[1]
        azimuth = ((width - places[:, 1] - 0.5) / width * 2 - 1) * np.pi - np.arctan2(extrinsic[1, 0], extrinsic[0, 0])
        inclination = inclinations[places[:, 0]]
        distance = pixels[:, 0].astype(np.float64)
        flat = distance * np.cos(inclination)
        xyz = np.stack([flat * np.cos(azimuth), flat * np.sin(azimuth), distance * np.sin(inclination)], axis=1)
        xyz = _moved(xyz, extrinsic)
        if self._vehicle is not None:
            pixel_poses = self._pixel_poses(row, image.shape)
            if pixel_poses is not None:
                return _moved_each(xyz, pixel_poses[places[:, 0], places[:, 1]]), pixels, places
            if row[_TIME] not in self._vehicle:
                raise ValueError(f"the vehicle's pose of frame {row[_TIME]} is not there")
            xyz = _moved(xyz, _transform(self._vehicle[row[_TIME]]))
        return xyz, pixels, places

    def _calibration(self, laser: int, height: int) -> tuple[Matrix, Matrix]:
        """Returns the laser's pose in the vehicle [4, 4], and the inclination of each row of its images in radians."""
        if laser not in self._lasers:
            raise ValueError(f"laser {laser} has no calibration")
        row = self._lasers[laser]
        values = row[_CALIBRATION + "beam_inclination.values"]
        if values is None or not len(values):
            low, high = (row[_CALIBRATION + f"beam_inclination.{end}"] for end in ("min", "max"))
            values = (np.arange(height) + 0.5) / height * (high - low) + low
        if len(values) != height:
            raise ValueError(f"laser {laser} has {len(values)} inclinations for images of {height} rows")
        return _transform(row[_CALIBRATION + "extrinsic.transform"]), np.asarray(values, np.float64)[::-1]

    def _pixel_poses(self, row: dict[str, Any], shape: tuple[int, ...]) -> Matrix | None:
        """Returns roll, pitch, yaw, x, y, z of the vehicle at each pixel [rows, columns, 6], for both returns; None if
        they are not there.
        """
        key = (row[_TIME], row[_LASER])
        if key not in self._groups:
            return None
        if self._group[0] != self._groups[key]:
            number = self._groups[key]
            rows = _rows(self._pixels, row_groups=[number])
            self._group = (number, {(each[_TIME], each[_LASER]): each for each in rows})
        poses = self._shaped(self._group[1][key], _PIXEL_POSE, 6)
        if poses.shape[:2] != shape[:2]:
            raise ValueError(f"the poses of {poses.shape[:2]} pixels belong to an image of {shape[:2]}")
        return poses.astype(np.float64)

    def close(self) -> None:
        for file in (self._file, self._pixels):
            if file is not None:
                file.close()


def _open(path: Path) -> Any:
    try:
        return library("pyarrow.parquet").ParquetFile(path)
    except Exception as error:
        raise damaged(path, error) from None


def _groups(file: Any) -> dict[tuple[int, int], int]:
    """Returns the number of the row group that has the row of each frame and laser."""
    return {
        (row[_TIME], row[_LASER]): number
        for number in range(file.num_row_groups)
        for row in _rows(file, [_TIME, _LASER], [number])
    }


def _rows(file: Any, columns: list[str] | None = None, row_groups: list[int] | None = None) -> Iterator[dict[str, Any]]:
    """Yields rows of a file, with numpy arrays for lists."""
    for batch in file.iter_batches(batch_size=1, columns=columns, row_groups=row_groups):
        names = batch.schema.names
        for index in range(batch.num_rows):
            yield {name: _value(batch.column(i)[index]) for i, name in enumerate(names)}


def _value(scalar: Any) -> Any:
    """Returns a number or a string, or the array of a list."""
    if hasattr(scalar, "values"):
        return None if scalar.values is None else scalar.values.to_numpy(zero_copy_only=False)
    return scalar.as_py()


def _transform(values: Any) -> Matrix:
    if values is None or len(values) != 16:
        raise ValueError("a pose has other than 16 numbers")
    return np.asarray(values, np.float64).reshape(4, 4)


def _moved(xyz: Matrix, transform: Matrix) -> Matrix:
    moved: Matrix = xyz @ transform[:3, :3].T + transform[:3, 3]
    return moved


def _moved_each(xyz: Matrix, poses: Matrix) -> Matrix:
    """Returns points [N, 3], each moved by its own pose [N, 6]: turned by roll about x, then pitch about y, then yaw
    about z.
    """
    moved = xyz
    for axis, (first, second) in enumerate(((1, 2), (2, 0), (0, 1))):
        cos, sin = np.cos(poses[:, axis]), np.sin(poses[:, axis])
        turned = moved.copy()
        turned[:, first] = cos * moved[:, first] - sin * moved[:, second]
        turned[:, second] = sin * moved[:, first] + cos * moved[:, second]
        moved = turned
    return moved + poses[:, 3:]
