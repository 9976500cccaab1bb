#!/usr/bin/env python3
"""Makes a LAZ survey of any size from scans, moved and turned: python make_survey.py OUT.laz MILLIONS SCAN...

The scans are .bin files of float32 x, y, z, intensity. Copy k lies at column k % W and row k / W of a square grid of
60 m, turned by k * 37 degrees, in coordinates of a projected system (x 500 km, y 5,400 km). Only points within 40 m of
the sensor are taken, so copies overlap a little. The file has the format 6, returns, times, and in user_data the number
of the copy modulo 256.
"""

from __future__ import annotations

import sys
from pathlib import Path

import laspy
import numpy as np

STEP, NEAR = 60.0, 40.0  # metres
ORIGIN = np.array([500_000.0, 5_400_000.0, 250.0])


def main(out: str, millions: str, *scans: str) -> None:
    total = round(float(millions) * 1e6)
    sources = [np.fromfile(Path(scan), np.float32).reshape(-1, 4) for scan in scans]
    sources = [each[np.hypot(each[:, 0], each[:, 1]) < NEAR] for each in sources]
    width = int(np.ceil(np.sqrt(total / np.mean([len(each) for each in sources]))))
    header = laspy.LasHeader(version="1.4", point_format=6)
    header.scales, header.offsets = np.full(3, 0.001), ORIGIN
    number = copy = 0
    with laspy.open(out, mode="w", header=header) as writer:
        while number < total:
            scan = sources[copy % len(sources)][: total - number].astype(np.float64)
            angle = np.radians(37.0 * copy)
            turn = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
            xyz = scan[:, :3].copy()
            xyz[:, :2] = scan[:, :2] @ turn.T + (copy % width * STEP, copy // width * STEP)
            points = laspy.ScaleAwarePointRecord.zeros(len(scan), header=header)
            points["x"], points["y"], points["z"] = (xyz + ORIGIN).T
            points["intensity"] = np.rint(np.clip(scan[:, 3], 0, 1) * 65535).astype(np.uint16)
            points["return_number"] = points["number_of_returns"] = np.ones(len(scan), np.uint8)
            points["gps_time"] = np.arange(number, number + len(scan)) * 1e-6
            points["user_data"] = np.full(len(scan), copy % 256, np.uint8)
            writer.write_points(points)
            number, copy = number + len(scan), copy + 1
    print(f"{out}: {number:,} points of {copy} copies, {width} a row")


if __name__ == "__main__":
    main(*sys.argv[1:])
