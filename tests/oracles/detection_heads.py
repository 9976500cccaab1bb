"""Decodes the images of detection heads into boxes, and applies non-maximum suppression to boxes.

It is written from the definitions in proto/voxserve/model/v1/model.proto, in float64 and in the simplest way: every
cell is decoded and sorted with all others, and the overlap of each pair of boxes is cut out polygon by polygon. Writes
the cases that tests/kernels/boxes/detection_heads_test.cc and rotated_nms_test.cc read:

    python3 tests/oracles/detection_heads.py tests/golden/detection_heads.npz

The images have multiples of 1/32 between -4 and 4. Every dtype stores them exactly, and many scores are equal. The
random numbers have a fixed seed, so a second run writes the same file.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

OPENPCDET, DET3D = 1, 2
COLUMNS = 11  # x, y, z, length, width, height, yaw, velocity x and y, score, class
SCORE, CLASS = 9, 10
NO_BOX = np.array([0.0] * SCORE + [-1.0, 0.0])


def sigmoid(logits):
    return 1 / (1 + np.exp(-logits))


def rows_of(boxes, num_rows):
    return np.array([*boxes, *[NO_BOX] * (num_rows - len(boxes))]).reshape(num_rows, COLUMNS)


# ---------------------------------------------------------------------------------------------------------------------
# CenterPoint


def center_box(case, images, sample, row, column, k):
    """Returns one box as a row of COLUMNS, or None if the cell's values make no finite box within the case's range."""
    center, height, dim, rot = (images[name][sample, row, column] for name in ("center", "height", "dim", "rot"))
    cosine, sine = rot if case["convention"] == OPENPCDET else rot[::-1]
    with np.errstate(over="ignore"):
        box = [
            (column + center[0]) * case["stride"] * case["voxel_size"][0] + case["range_min"][0],
            (row + center[1]) * case["stride"] * case["voxel_size"][1] + case["range_min"][1],
            height[0],
            *np.exp(dim),
            np.arctan2(sine, cosine),
            *(images["vel"][sample, row, column] if "vel" in images else (0.0, 0.0)),
            sigmoid(images["heatmap"][sample, row, column, k]),
            case["class_ids"][k],
        ]
    is_within = all(low <= value <= high for low, value, high in zip(case["center_min"], box, case["center_max"]))
    return np.array(box) if is_within and np.isfinite(box).all() else None


def decode_center_sample(case, images, sample):
    heatmap = images["heatmap"][sample]
    num_rows, num_columns, num_classes = heatmap.shape
    cells = [(row, column) for row in range(num_rows) for column in range(num_columns)]
    max_boxes = case["max_boxes"]

    def best_first(candidates):  # A candidate is (logit, class, cell).
        return sorted((c for c in candidates if np.isfinite(c[0])), key=lambda c: (-c[0], c[1], c[2]))

    def decoded(candidate):
        return center_box(case, images, sample, *cells[candidate[2]], candidate[1])

    every = [[(heatmap[cell][k], k, i) for i, cell in enumerate(cells)] for k in range(num_classes)]
    if case["convention"] == OPENPCDET:
        of_classes = [candidate for of_class in every for candidate in best_first(of_class)[:max_boxes]]
        boxes = [decoded(c) for c in best_first(of_classes)[:max_boxes] if sigmoid(c[0]) > case["score_threshold"]]
        return [box for box in boxes if box is not None]
    of_cells = [best_first(of_cell)[:1] for of_cell in zip(*every)]
    candidates = best_first(candidate for of_cell in of_cells for candidate in of_cell)
    boxes = [decoded(c) for c in candidates if sigmoid(c[0]) > case["score_threshold"]]
    return [box for box in boxes if box is not None][:max_boxes]


def decode_center(case, images):
    """Returns the boxes of all samples, [samples, max_boxes, COLUMNS]."""
    images = {name: image.astype(np.float64) for name, image in images.items()}
    samples = range(len(images["heatmap"]))
    return np.array([rows_of(decode_center_sample(case, images, s), case["max_boxes"]) for s in samples])


# ---------------------------------------------------------------------------------------------------------------------
# SECOND


def anchor_box(case, scores, residuals, directions, row, column, anchor, shape):
    size, bottom, rotation = anchor[:3], anchor[3], anchor[4]
    low, high = case["range_min"], case["range_max"]
    centre = [low[0], low[1], bottom + size[2] / 2]
    for axis, (place, count) in enumerate(((column, shape[1]), (row, shape[0]))):
        if count > 1:
            centre[axis] += place * (high[axis] - low[axis]) / (count - 1)
    diagonal = np.hypot(size[0], size[1])
    period = 2 * np.pi / len(directions)
    turned = residuals[6] + rotation - case["direction_offset"]
    if not np.isfinite(turned):
        return None
    turned -= np.floor(turned / period + case["direction_limit_offset"]) * period
    yaw = turned + case["direction_offset"] + period * np.argmax(directions)
    best = int(np.nanargmax(scores))
    with np.errstate(over="ignore"):
        box = [
            residuals[0] * diagonal + centre[0],
            residuals[1] * diagonal + centre[1],
            residuals[2] * size[2] + centre[2],
            *np.exp(residuals[3:6]) * size,
            np.arctan2(np.sin(yaw), np.cos(yaw)),
            0.0,
            0.0,
            sigmoid(scores[best]),
            case["class_ids"][best],
        ]
    return np.array(box) if np.isfinite(box).all() else None


def decode_anchors_sample(case, images, sample):
    shape = images["scores"].shape[1:3]
    num_anchors = len(case["anchors"])
    candidates = []
    for row in range(shape[0]):
        for column in range(shape[1]):
            parts = [
                images[name][sample, row, column].reshape(num_anchors, -1)
                for name in ("scores", "residuals", "directions")
            ]
            for number, (scores, residuals, directions) in enumerate(zip(*parts)):
                scores = np.where(np.isfinite(scores), scores, np.nan)
                if np.isnan(scores).all() or sigmoid(np.nanmax(scores)) < case["score_threshold"]:
                    continue
                anchor = case["anchors"][number]
                box = anchor_box(case, scores, residuals, directions, row, column, anchor, shape)
                candidates.append((np.nanmax(scores), box))
    candidates.sort(key=lambda c: -c[0])  # The sort is stable, so of equal scores the lower anchor comes first.
    return [box for _, box in candidates[: case["max_boxes"]] if box is not None]


def decode_anchors(case, images):
    images = {name: image.astype(np.float64) for name, image in images.items()}
    samples = range(len(images["scores"]))
    return np.array([rows_of(decode_anchors_sample(case, images, s), case["max_boxes"]) for s in samples])


# ---------------------------------------------------------------------------------------------------------------------
# Non-maximum suppression


def corners(box):
    along = np.array([np.cos(box[6]), np.sin(box[6])]) * box[3] / 2
    across = np.array([-np.sin(box[6]), np.cos(box[6])]) * box[4] / 2
    return [box[:2] + along + across, box[:2] - along + across, box[:2] - along - across, box[:2] + along - across]


def cross(a, b):
    return a[0] * b[1] - a[1] * b[0]


def overlap(a, b):
    """Returns the area that two boxes share, seen from above: a's polygon is cut by each side of b (Sutherland and
    Hodgman).
    """
    polygon = corners(a)
    sides = corners(b)
    for begin, end in zip(sides, sides[1:] + sides[:1]):
        inside = [cross(end - begin, point - begin) for point in polygon]
        cut = []
        for i, point in enumerate(polygon):
            before, previous = inside[i - 1], polygon[i - 1]
            if (inside[i] > 0) != (before > 0):
                cut.append(previous + (point - previous) * before / (before - inside[i]))
            if inside[i] > 0:
                cut.append(point)
        polygon = cut
    return 0.5 * sum(cross(polygon[i - 1], polygon[i]) for i in range(len(polygon)))


def iou(a, b):
    common = overlap(a, b)
    return np.float32(common / max(a[3] * a[4] + b[3] * b[4] - common, 1e-8))


def suppress(boxes, threshold, max_in, max_out):
    """Returns the boxes that non-maximum suppression keeps. `boxes` is sorted by falling score."""
    kept = []
    for box in boxes[: max_in or None]:
        if len(kept) < max_out and all(iou(better, box) <= np.float32(threshold) for better in kept):
            kept.append(box)
    return kept


def nms(inputs, threshold, max_in, max_out):
    """Applies non-maximum suppression to each array of `inputs`, [samples, n, COLUMNS], on its own. Returns the kept
    boxes of all arrays, [samples, rows, COLUMNS].
    """
    num_rows = sum(min(max_out, max_in or len(boxes[0]), len(boxes[0])) for boxes in inputs)
    results = []
    for sample in range(len(inputs[0])):
        kept = []
        for boxes in inputs:
            present = [box for box in boxes[sample].astype(np.float64) if box[SCORE] != -1]
            kept += suppress(present, threshold, max_in, max_out)
        results.append(rows_of(kept, num_rows))
    return np.array(results)


# ---------------------------------------------------------------------------------------------------------------------
# Cases


def image(random, samples, shape, channels):
    return (random.integers(-128, 128, (samples, *shape, channels)) / 32).astype(np.float32)


def center_case(random, convention, classes, shape, samples, max_boxes, threshold, has_velocity, reach):
    case = {
        "convention": convention,
        "stride": int(random.choice([1, 4, 8])),
        "voxel_size": [0.075, 0.1],
        "range_min": [-6.0, -4.1],
        "score_threshold": threshold,
        "max_boxes": max_boxes,
        "center_min": [-reach, -reach, -3.01],
        "center_max": [reach, reach, 3.01],
        "class_ids": random.permutation(10)[:classes],
    }
    channels = {"heatmap": classes, "center": 2, "height": 1, "dim": 3, "rot": 2} | ({"vel": 2} if has_velocity else {})
    images = {name: image(random, samples, shape, count) for name, count in channels.items()}
    for name, value in (("heatmap", np.nan), ("heatmap", np.inf), ("heatmap", -np.inf), ("dim", np.nan), ("rot", np.inf)):
        values = images[name].reshape(-1)
        values[random.integers(values.size, size=max(values.size // 40, 1))] = value
    return case, images


def anchor_case(random, classes, shape, samples, max_boxes, threshold, num_bins):
    anchors = [[*random.uniform(0.5, 4, 3), random.uniform(-2, 0), turn] for _ in range(classes) for turn in (0, 1.57)]
    case = {
        "range_min": [0.0, -40.0],
        "range_max": [70.4, 40.0],
        "direction_offset": 0.78539,
        "direction_limit_offset": 0.0 if num_bins == 2 else 0.5,
        "score_threshold": threshold,
        "max_boxes": max_boxes,
        "anchors": np.array(anchors, np.float32),
        "class_ids": random.permutation(10)[:classes],
    }
    channels = {"scores": len(anchors) * classes, "residuals": len(anchors) * 7, "directions": len(anchors) * num_bins}
    images = {name: image(random, samples, shape, count) for name, count in channels.items()}
    for name, value in (("scores", np.nan), ("scores", np.inf), ("residuals", np.nan), ("residuals", np.inf)):
        values = images[name].reshape(-1)
        values[random.integers(values.size, size=max(values.size // 100, 1))] = value
    return case, images


def crowd(random, samples, num_boxes, spread):
    """Returns boxes [samples, num_boxes, COLUMNS] around six places. Some are equal, turned by quarters or touch each
    other.
    """
    places = random.uniform(-spread, spread, (6, 2))
    boxes = np.zeros((samples, num_boxes, COLUMNS))
    boxes[..., :2] = places[random.integers(6, size=(samples, num_boxes))] + random.normal(0, 1, (samples, num_boxes, 2))
    boxes[..., 2] = random.normal(0, 1, (samples, num_boxes))
    boxes[..., 3:6] = random.uniform(0.3, 5, (samples, num_boxes, 3))
    boxes[..., 6] = random.uniform(-np.pi, np.pi, (samples, num_boxes))
    boxes[..., CLASS] = random.integers(4, size=(samples, num_boxes))
    for sample in boxes:
        for i in range(1, num_boxes, 7):
            change = i // 7 % 4
            sample[i, :7] = sample[i - 1, :7]
            if change == 1:
                sample[i, 6] += np.pi / 2
            elif change == 2:
                sample[i, :2] += sample[i, 3] * np.array([np.cos(sample[i, 6]), np.sin(sample[i, 6])])
            elif change == 3:
                sample[i, 3:5] = sample[i, 4:2:-1]
        sample[:, SCORE] = np.sort(random.uniform(0, 1, num_boxes))[::-1]
    return boxes.astype(np.float32)


def numbers(*values):
    return np.array([float(value) for value in values])


def cases():
    random = np.random.default_rng(7)
    arrays = {}
    for i, options in enumerate(
        (
            (OPENPCDET, 1, (9, 13), 1, 20, 0.1, True, 5.77),
            (OPENPCDET, 3, (14, 11), 2, 60, 0.3, False, 90.0),
            (OPENPCDET, 2, (12, 10), 3, 500, 0.0, True, 5.51),
            (DET3D, 2, (9, 13), 1, 20, 0.1, True, 5.77),
            (DET3D, 3, (14, 11), 2, 300, 0.6, False, 90.0),
            (DET3D, 1, (5, 6), 3, 4, 0.98, True, 90.0),
        )
    ):
        case, images = center_case(random, *options)
        arrays |= {f"center{i}_{name}": values for name, values in images.items()}
        arrays[f"center{i}_numbers"] = numbers(
            case["convention"],
            case["stride"],
            *case["voxel_size"],
            *case["range_min"],
            case["score_threshold"],
            case["max_boxes"],
            *case["center_min"],
            *case["center_max"],
        )
        arrays[f"center{i}_class_ids"] = case["class_ids"].astype(np.int32)
        arrays[f"center{i}_boxes"] = decode_center(case, images).astype(np.float32)
    for i, options in enumerate(((3, (9, 7), 2, 50, 0.5, 2), (1, (1, 8), 1, 400, 0.1, 2), (2, (6, 1), 3, 10, 0.0, 4))):
        case, images = anchor_case(random, *options)
        arrays |= {f"anchor{i}_{name}": values for name, values in images.items()}
        arrays[f"anchor{i}_numbers"] = numbers(
            *case["range_min"],
            *case["range_max"],
            case["direction_offset"],
            case["direction_limit_offset"],
            case["score_threshold"],
            case["max_boxes"],
        )
        arrays[f"anchor{i}_anchors"] = case["anchors"]
        arrays[f"anchor{i}_class_ids"] = case["class_ids"].astype(np.int32)
        arrays[f"anchor{i}_boxes"] = decode_anchors(case, images).astype(np.float32)
    for i, (threshold, max_in, max_out, sizes) in enumerate(
        ((0.2, 0, 83, (70, 30)), (0.7, 100, 40, (150,)), (0.01, 0, 500, (1, 64, 65)))
    ):
        inputs = [crowd(random, 2, size, 10.0) for size in sizes]
        inputs[-1][1, sizes[-1] // 2 :] = NO_BOX
        arrays |= {f"nms{i}_input{k}": boxes for k, boxes in enumerate(inputs)}
        arrays[f"nms{i}_numbers"] = numbers(threshold, max_in, max_out)
        arrays[f"nms{i}_boxes"] = nms(inputs, threshold, max_in, max_out).astype(np.float32)
    return arrays


def main() -> None:
    np.savez_compressed(Path(sys.argv[1]), **cases())


if __name__ == "__main__":
    main()
