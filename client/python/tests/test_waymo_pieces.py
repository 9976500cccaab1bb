"""Tests voxserve.pieces.waymo with files of its layout, whose points plain loops compute from the published formula."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from voxserve import pieces

pyarrow = pytest.importorskip("pyarrow", reason="pyarrow is not installed")
from pyarrow import parquet  # noqa: E402

TOP, FRONT = 1, 2
TIMES = (1_500_000_000_000_000, 1_500_000_000_100_000)
INCLINATIONS = [-0.3, -0.1, 0.05]


def turned(roll: float, pitch: float, yaw: float, x: float, y: float, z: float) -> np.ndarray[Any, Any]:
    """Returns the transform [4, 4] that turns by roll about x, then pitch about y, then yaw about z, and moves."""
    cr, sr, cp, sp, cy, sy = (f(a) for a in (roll, pitch, yaw) for f in (math.cos, math.sin))
    about_x = np.array([[1, 0, 0], [0, cr, -sr], [0, sr, cr]])
    about_y = np.array([[cp, 0, sp], [0, 1, 0], [-sp, 0, cp]])
    about_z = np.array([[cy, -sy, 0], [sy, cy, 0], [0, 0, 1]])
    transform = np.eye(4)
    transform[:3, :3] = about_z @ about_y @ about_x
    transform[:3, 3] = x, y, z
    return transform


EXTRINSICS = {TOP: turned(0.01, -0.02, 2.5, 1.43, 0, 2.184), FRONT: turned(0, 0.1, -0.4, 4.07, 0, 0.69)}
VEHICLE = {TIMES[0]: turned(0.01, 0, 0.3, 8000, -3000, 20), TIMES[1]: turned(0.01, 0.02, 0.31, 8001, -3000.5, 20)}


class Segment:
    """A segment of two frames, two lasers and two returns."""

    def __init__(self, root: Path) -> None:
        random = np.random.default_rng(3)
        self.root = root
        self.images: dict[tuple[int, int, int], np.ndarray[Any, Any]] = {}
        for time in TIMES:
            for laser, shape in ((TOP, (3, 8)), (FRONT, (4, 5))):
                for number in (1, 2):
                    image = random.uniform(0, 1, (*shape, 4)).astype(np.float32)
                    image[..., 0] = np.where(random.uniform(0, 1, shape) < 0.6, 70 * image[..., 0], -1)
                    self.images[time, laser, number] = image
        self.poses = {
            time: np.concatenate(
                [random.uniform(-0.05, 0.05, (3, 8, 3)), random.uniform(-100, 100, (3, 8, 3))], axis=2
            ).astype(np.float32)
            for time in TIMES
        }

    def write(self, *components: str, times: tuple[int, ...] = TIMES, height: int = 3) -> Path:
        keys = [(time, laser) for time in times for laser in (TOP, FRONT)]
        lidar: dict[str, Any] = {"key.frame_timestamp_micros": [time for time, _ in keys]}
        lidar["key.laser_name"] = [laser for _, laser in keys]
        for number in (1, 2):
            images = [self.images[time, laser, number] for time, laser in keys]
            prefix = f"[LiDARComponent].range_image_return{number}."
            lidar[prefix + "values"] = [image.ravel() for image in images]
            lidar[prefix + "shape"] = [np.array(image.shape, np.int32) for image in images]
        path = self._table("lidar", lidar)
        tables: dict[str, Callable[[], dict[str, Any]]] = {
            "lidar_calibration": lambda: {
                "key.laser_name": [TOP, FRONT],
                "[LiDARCalibrationComponent].extrinsic.transform": [EXTRINSICS[k].ravel() for k in (TOP, FRONT)],
                "[LiDARCalibrationComponent].beam_inclination.min": [-0.3, -0.8],
                "[LiDARCalibrationComponent].beam_inclination.max": [0.05, 0.4],
                "[LiDARCalibrationComponent].beam_inclination.values": [INCLINATIONS[:height], None],
            },
            "vehicle_pose": lambda: {
                "key.frame_timestamp_micros": list(TIMES),
                "[VehiclePoseComponent].world_from_vehicle.transform": [VEHICLE[time].ravel() for time in TIMES],
            },
            "lidar_pose": lambda: {
                "key.frame_timestamp_micros": list(TIMES),
                "key.laser_name": [TOP, TOP],
                "[LiDARPoseComponent].range_image_return1.values": [self.poses[time].ravel() for time in TIMES],
                "[LiDARPoseComponent].range_image_return1.shape": [np.array([3, 8, 6], np.int32)] * 2,
            },
        }
        for component in components:
            self._table(component, tables[component]())
        return path

    def _table(self, component: str, columns: dict[str, Any]) -> Path:
        path = self.root / component / "segment.parquet"
        path.parent.mkdir(exist_ok=True)
        parquet.write_table(pyarrow.table(columns), path, row_group_size=1)
        return path

    def points(self, poses: str, times: tuple[int, ...] = TIMES) -> list[list[float]]:
        """Returns x, y, z, intensity, return, laser, row and column of each point, by plain loops."""
        points = []
        for time in times:
            for laser in (TOP, FRONT):
                for number in (1, 2):
                    image = self.images[time, laser, number]
                    height, width = image.shape[:2]
                    values = INCLINATIONS if laser == TOP else [(i + 0.5) / height * 1.2 - 0.8 for i in range(height)]
                    extrinsic = EXTRINSICS[laser]
                    for row in range(height):
                        for column in range(width):
                            distance = float(image[row, column, 0])
                            if distance <= 0:
                                continue
                            inclination = values[height - 1 - row]
                            correction = math.atan2(extrinsic[1, 0], extrinsic[0, 0])
                            azimuth = ((width - column - 0.5) / width * 2 - 1) * math.pi - correction
                            place = np.array(
                                [
                                    distance * math.cos(azimuth) * math.cos(inclination),
                                    distance * math.sin(azimuth) * math.cos(inclination),
                                    distance * math.sin(inclination),
                                    1,
                                ]
                            )
                            place = extrinsic @ place
                            if poses == "pixels" and laser == TOP:
                                place = turned(*map(float, self.poses[time][row, column])) @ place
                            elif poses:
                                place = VEHICLE[time] @ place
                            points.append([*place[:3], float(image[row, column, 1]), number, laser, row, column])
        return points


def read(path: Path, size: int = 7) -> np.ndarray[Any, Any]:
    rows = []
    with pieces.open_reader(path) as reader:
        for piece in reader.pieces(size):
            assert len(piece) <= size
            names = ("intensity", "return_number", "laser_name", "row", "column")
            rows.append(np.column_stack([piece.xyz, *(piece.column(name) for name in names)]))
        assert reader.contents.num_points == sum(map(len, rows))
    return np.concatenate(rows)


@pytest.mark.parametrize(
    ("components", "poses"), [(["vehicle_pose"], "frames"), (["vehicle_pose", "lidar_pose"], "pixels")]
)
def test_points_are_those_of_the_formula(tmp_path: Path, components: list[str], poses: str) -> None:
    segment = Segment(tmp_path)
    path = segment.write("lidar_calibration", *components)
    np.testing.assert_allclose(read(path), segment.points(poses), rtol=0, atol=1e-8)


def test_one_frame_without_poses_is_in_the_vehicles_coordinates(tmp_path: Path) -> None:
    segment = Segment(tmp_path)
    path = segment.write("lidar_calibration", times=TIMES[:1])
    np.testing.assert_allclose(read(path), segment.points("", TIMES[:1]), rtol=0, atol=1e-9)


def test_numbers_by_hand(tmp_path: Path) -> None:
    segment = Segment(tmp_path)
    for key in segment.images:
        segment.images[key][..., 0] = 0
    segment.images[TIMES[0], FRONT, 1][0, 0, 0] = 10  # the highest beam, and the azimuth 0.8 pi + 0.4
    path = segment.write("lidar_calibration", times=TIMES[:1])
    flat, up = 10 * math.cos(0.25), 10 * math.sin(0.25)  # inclinations of -0.8 to 0.4 in 4 steps of 0.3
    azimuth = 0.8 * math.pi + 0.4
    seen = np.array([flat * math.cos(azimuth), flat * math.sin(azimuth), up])
    tilted = np.array([[math.cos(0.1), 0, math.sin(0.1)], [0, 1, 0], [-math.sin(0.1), 0, math.cos(0.1)]]) @ seen
    x = math.cos(-0.4) * tilted[0] - math.sin(-0.4) * tilted[1] + 4.07
    y = math.sin(-0.4) * tilted[0] + math.cos(-0.4) * tilted[1]
    np.testing.assert_allclose(read(path)[0, :3], [x, y, tilted[2] + 0.69], rtol=0, atol=1e-6)


def test_what_is_missing_or_wrong(tmp_path: Path) -> None:
    segment = Segment(tmp_path)
    path = segment.write()
    with pytest.raises(ValueError, match=r"calibration of its lasers, .*lidar_calibration/segment.parquet, is needed"):
        read(path)
    segment.write("lidar_calibration")
    with pytest.raises(ValueError, match=r"several frames, and the vehicle's poses, .*, are not there"):
        read(path)
    segment.write("lidar_calibration", "vehicle_pose", height=2)
    with pytest.raises(ValueError, match="laser 1 has 2 inclinations for images of 3 rows"):
        read(path)
    segment.write("lidar_calibration", "vehicle_pose")
    (tmp_path / "lidar_pose").mkdir()
    (tmp_path / "lidar_pose" / "segment.parquet").write_bytes(b"PAR1")
    with pytest.raises(ValueError, match=r"lidar_pose/segment.parquet: the file cannot be read"):
        read(path)
    (tmp_path / "lidar_pose" / "segment.parquet").unlink()
    segment.images[TIMES[0], TOP, 1] = segment.images[TIMES[0], TOP, 1][..., :3]
    segment.write("lidar_calibration", "vehicle_pose")
    with pytest.raises(ValueError, match="an image of 72 values has the shape"):
        read(path)
