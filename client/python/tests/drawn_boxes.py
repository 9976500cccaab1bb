"""Draws random boxes. For these, drawn_boxes_expected.py has the metrics that the benchmarks' own programs computed."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]


@dataclass(frozen=True)
class DrawnFrame:
    """Boxes [N, 7], velocities [N, 2], and the properties of the boxes in the image that KITTI's rules read."""

    true: Array
    true_velocities: Array
    found: Array
    found_velocities: Array
    scores: Array
    names: tuple[str, ...]  # the class of each true box
    heights: Array  # of the true boxes in the image, pixels
    occlusions: npt.NDArray[np.int64]
    truncations: Array
    found_heights: Array


def draw() -> list[DrawnFrame]:
    """Returns twelve frames. Most true boxes have a found box near them, some have none, and some found boxes match no
    true box. A linear congruential generator draws the numbers, so that every version of NumPy gives the same boxes.
    """
    state = 12345

    def unit() -> float:
        nonlocal state
        state = (1103515245 * state + 12345) % (1 << 31)
        return state / (1 << 31)

    frames = []
    for _ in range(12):
        true, velocities, found, found_velocities, scores = [], [], [], [], []
        names, heights, occlusions, truncations, found_heights = [], [], [], [], []
        for index in range(9):
            size = (3.5 + 1.5 * unit(), 1.5 + 0.5 * unit(), 1.4 + 0.4 * unit())
            centre = (12.0 * (index % 3) + 4 * unit(), 12.0 * (index // 3) + 4 * unit(), unit())
            box = [*centre, *size, 6.28 * unit() - 3.14]
            speed = [10 * unit() - 5, 4 * unit() - 2]
            true.append(box)
            velocities.append(speed)
            names.append(("Car", "Car", "Car", "Van", "Pedestrian")[int(5 * unit())])
            heights.append(15 + 60 * unit())
            occlusions.append(int(3.4 * unit()))
            truncations.append(0.5 * unit() * unit())
            for _ in range(int(2.3 * unit() + 0.4)):
                blur = 1.6 * unit() ** 3
                moved = [value + blur * (unit() - 0.5) for value in box[:3]]
                grown = [value * (1 + 0.25 * (unit() - 0.5)) for value in box[3:6]]
                found.append([*moved, *grown, box[6] + 0.3 * (unit() - 0.5)])
                found_velocities.append([value + unit() - 0.5 for value in speed])
                scores.append(round(min(0.999, max(0.01, 0.9 - blur / 2 + 0.4 * (unit() - 0.5))), 3))
                found_heights.append(heights[-1] + 4 * unit())
        for _ in range(int(4 * unit())):
            found.append([40 * unit(), 40 * unit(), 0.5, 4.0, 1.8, 1.5, 3 * unit()])
            found_velocities.append([0.0, 0.0])
            scores.append(round(0.8 * unit(), 3))
            found_heights.append(15 + 60 * unit())
        frames.append(
            DrawnFrame(
                np.array(true), np.array(velocities), np.array(found), np.array(found_velocities), np.array(scores),
                tuple(names), np.array(heights), np.array(occlusions), np.array(truncations), np.array(found_heights),
            )
        )  # fmt: skip
    return frames
