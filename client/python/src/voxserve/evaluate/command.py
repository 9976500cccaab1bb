"""Parses the command line, sends a data set's scans to the server and reports the measures.

Exit status: 0 done, 1 something failed, 2 wrong usage.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from voxserve import errors, input_file
from voxserve.cli import arguments
from voxserve.cli.connection import connect
from voxserve.cli.flag_parser import FlagParser
from voxserve.cli.infer import advise, warn_of_new_names
from voxserve.cli.progress import Progress
from voxserve.client import Client
from voxserve.evaluate import classes, pairs, segmentation
from voxserve.evaluate.classes import ClassMatch
from voxserve.evaluate.detection import Bins, Detection
from voxserve.evaluate.layouts import LAYOUTS, open_dataset
from voxserve.evaluate.report import format_report
from voxserve.evaluate.truth import Dataset, DatasetError, Frame, Scan
from voxserve.feature_warning import BY_FIELDS, settle_bits, told_on_stderr
from voxserve.new_file import new_file
from voxserve.numbers import real
from voxserve.point_cloud import as_cloud
from voxserve.results import Answer, Detections, ModelState, ModelVersion, Segmentation

_DESCRIPTION = """\
Measures a model on a labelled data set: mIoU of labels; mAP of boxes by nuScenes' rules (centres within 0.5, 1, 2 and
4 m) and by KITTI's (rotated overlap, 40 recall points); by class and by distance, with the latency of the requests.
The folder's layout is recognised: SemanticKITTI, KITTI's object detection, nuScenes (lidarseg and detection), PandaSet.
Classes are matched by their names, and by coarser names (a Pickup Truck is a truck), or as --classes says.

With two files, or two folders, it compares the classification of the same points (LAS, LAZ, PLY, PCD, Feather, Parquet)
and asks no server: IoU, precision, recall and confusion.
"""
_EXAMPLES = """\
examples:
  python -m voxserve.evaluate semantic-kitti/ --model minkunet --frames 08 --save report.json
  python -m voxserve.evaluate kitti/training --model second --frames ImageSets/val.txt
  python -m voxserve.evaluate nuscenes/ --model centerpoint --sweeps 10
  python -m voxserve.evaluate labelled.laz truth.laz --ignore 0,1
  python -m voxserve.evaluate pandaset/002 --model centerpoint --frames 60-79 --min_points 5
"""


def main(arguments_: Sequence[str] | None = None) -> int:
    """Runs the command and returns the exit status."""
    parser = _parser()
    options = parser.parse_args(arguments_)
    if bool(options.truth) == bool(options.model):
        parser.error("a data set needs --model; a file and its TRUTH need none")
    try:
        with told_on_stderr("voxserve.evaluate", BY_FIELDS):
            report = evaluate_pairs(options) if options.truth else evaluate(options)
        print((pairs.format_report if options.truth else format_report)(report), end="", flush=True)
        if options.save:
            with new_file(options.save) as file:
                file.write((json.dumps(report, indent=1) + "\n").encode())
            print(f"\nwrote {options.save}")
    except BrokenPipeError:  # the program that reads the output, such as `head`, has ended
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except (errors.InferenceError, OSError, ValueError) as error:
        print(f"voxserve.evaluate: {advise(error)}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


def evaluate_pairs(options: argparse.Namespace) -> dict[str, Any]:
    """Compares labelled files with others of the same points, and returns the report. Raises OSError or ValueError."""
    chosen = classes.read_choice(options.classes) if options.classes else None
    return pairs.evaluate(
        options.dataset, options.truth, options.found_field, options.truth_field, options.ignore, chosen
    )


def evaluate(options: argparse.Namespace) -> dict[str, Any]:
    """Evaluates the model on the data set and returns the report as values that JSON can hold. Raises InferenceError,
    OSError or ValueError.
    """
    dataset = open_dataset(options.dataset, options.layout, options.sweeps)
    frames = choose_frames(dataset, options.frames)
    chosen = classes.read_choice(options.classes) if options.classes else None
    with connect(options) as client:
        model = client.model(options.model, options.version)
        warn_of_new_names("voxserve.evaluate", options.fields, model)
        settle_bits(model.name, model.features, options.fields)
        run = _Run(options, dataset, client, model, chosen)
        frames = run.with_truth(frames)
        with Progress(len(frames), "frames") as progress:
            for number, (frame, scan, answers) in enumerate(run.answers(frames), 1):
                run.add(frame, scan, answers)
                progress.update(number)
        return run.report(len(frames))


def choose_frames(dataset: Dataset, wanted: str) -> list[Frame]:
    """Returns the frames that --frames selects. wanted: "" for all frames, frame numbers ("60-79,85"), names separated
    by commas, or a file with one name per line. A name is that of a frame, or the part before the slash, which names a
    sequence or scene. Raises DatasetError if no frame is selected.
    """
    frames = list(dataset.frames)
    if not wanted:
        return frames
    if re.fullmatch(r"[0-9]+(-[0-9]+)?(,[0-9]+(-[0-9]+)?)*", wanted) and not _names(frames, wanted.split(",")):
        ends = [part.partition("-") for part in wanted.split(",")]
        ranges = [(int(low), int(high or low)) for low, _, high in ends]
        found = [f for f in frames if f.number is not None and any(low <= f.number <= high for low, high in ranges)]
    else:
        path = Path(wanted)
        names = input_file.read_text(path).split() if path.is_file() else wanted.split(",")
        found = _names(frames, names)
    if not found:
        raise DatasetError(
            f"--frames {wanted}: none of the {len(frames)} frames, {frames[0].name} to {frames[-1].name}"
        )
    return found


def _names(frames: Sequence[Frame], names: Sequence[str]) -> list[Frame]:
    wanted = set(names)
    return [f for f in frames if f.name in wanted or ("/" in f.name and f.name.partition("/")[0] in wanted)]


@dataclass
class _Labels:
    """The confusion matrices of the labels."""

    match: ClassMatch
    ids: list[int]  # the ids of the model's classes, in the order of the matrices' rows
    # As segmentation.confusion returns them: counts[0] for all points, counts[i] for the points in range i - 1 of the
    # distances.
    counts: list[segmentation.Counts] = field(default_factory=list)
    not_counted: Counter[str] = field(default_factory=Counter)  # points by the name of a true label that does not count

    def row(self, dataset: Dataset, label: int) -> int:
        """Returns the row of a true label in the matrices; IGNORED if the model has no class for it."""
        for name in (str(label), dataset.label_names.get(label), dataset.other_labels.get(label)):
            if name is not None and name in self.match.ids:
                return self.ids.index(self.match.ids[name])
        return segmentation.IGNORED


class _Run:
    """The evaluation of one model on one data set."""

    def __init__(
        self,
        options: argparse.Namespace,
        dataset: Dataset,
        client: Client,
        model: ModelVersion,
        chosen: Mapping[str, Sequence[str]] | None,
    ) -> None:
        if model.state is not ModelState.READY:
            problems = "; ".join(model.problems)
            raise ValueError(f"{model.name} version {model.version} is {model.state.name.lower()}: {problems}")
        self._options, self._dataset, self._client, self._model = options, dataset, client, model
        self._bins = _bins(options.distances)
        self._labels: _Labels | None = None
        self._boxes: Detection | None = None
        self._left_out: list[str] = []
        self._notes = list(dataset.notes)
        self._round_trips: list[float] = []
        self._server_times: list[float] = []
        self._num_points = 0
        self._answer: Answer | None = None
        self._check_outputs()
        has_labels = bool(dataset.label_names) and model.has_labels
        has_boxes = bool(dataset.box_names) and model.has_boxes
        names = (*dataset.label_names.values(), *dataset.other_labels.values())
        if has_labels:
            match = classes.match(
                dataset.label_names.values(),
                dataset.aliases,
                model.classes,
                classes.without(chosen, dataset.box_names, names) if has_boxes else chosen,
                others=dataset.other_labels.values(),
                has_numbers=True,
            )
            self._labels = _Labels(match, [info.id for info in model.classes])
            size = len(model.classes)
            self._labels.counts = [np.zeros((size, size + 1), np.int64) for _ in range(1 + len(self._bins))]
            self._left_out += match.left_out
        if has_boxes:
            if has_labels:
                chosen = classes.without(chosen, names, dataset.box_names, drops_numbers=True)
            is_open = dataset.names_are_open
            match = classes.match(dataset.box_names, dataset.aliases, model.classes, chosen, is_open=is_open)
            self._boxes = Detection(dataset, model.classes, match.ids, options.min_points, options.max_distance)
            self._left_out += match.left_out

    def _check_outputs(self) -> None:
        dataset, model, folder = self._dataset, self._model, self._options.dataset
        has = [name for name, there in (("labels", dataset.label_names), ("boxes", dataset.box_names)) if there]
        gives = [name for name, there in (("labels", model.has_labels), ("boxes", model.has_boxes)) if there]
        notes = "".join(f". {note}" for note in dataset.notes)
        if not has:
            raise DatasetError(f"{folder}: layout {dataset.layout}, but it has neither labels nor boxes{notes}")
        if not set(has) & set(gives):
            answers = " and ".join(gives) or "tensors alone"
            raise ValueError(f"{model.name} answers with {answers}, but {folder} has {' and '.join(has)} alone{notes}")

    def with_truth(self, frames: Sequence[Frame]) -> list[Frame]:
        """Returns the frames that have the labels and boxes to compare with; the report tells of the others. Raises
        DatasetError if none has.
        """
        wants_labels, wants_boxes = self._labels is not None, self._boxes is not None
        kept = [f for f in frames if f.has_labels >= wants_labels and f.has_boxes >= wants_boxes]
        what = " and ".join(["labels"] * wants_labels + ["boxes"] * wants_boxes)
        if not kept:
            raise DatasetError(f"{self._options.dataset}: none of the {len(frames)} frames has {what}")
        if len(kept) < len(frames):
            first = next(f for f in frames if f.has_labels < wants_labels or f.has_boxes < wants_boxes)
            self._notes.append(
                f"{len(frames) - len(kept)} frames are left out, since they have no {what}: {first.name} is the first"
            )
        return kept

    def answers(self, frames: Sequence[Frame]) -> Iterator[tuple[Frame, Scan, list[Answer]]]:
        """Yields the frames in order, with their scans and answers. --concurrency frames are under way at once."""
        waiting = iter(frames)
        with ThreadPoolExecutor(self._options.concurrency) as pool:
            futures = [(f, pool.submit(self._ask, f)) for f in islice(waiting, self._options.concurrency)]
            while futures:
                frame, future = futures.pop(0)
                scan, answers = future.result()
                futures += [(f, pool.submit(self._ask, f)) for f in islice(waiting, 1)]
                yield frame, scan, answers

    def _ask(self, frame: Frame) -> tuple[Scan, list[Answer]]:
        scan = frame.read(self._labels is not None, self._boxes is not None)
        scan = replace(scan, cloud=as_cloud(scan.cloud, self._options.fields or None))
        cloud = scan.cloud
        if cloud.field("age") is not None:
            name = next((feature.name for feature in self._model.features if feature.unit == "s"), None)
            if name is None:
                raise ValueError(f"--sweeps: {self._model.name} reads no age of points (a feature in s)")
            cloud = replace(cloud, fields=tuple(replace(f, name=name) if f.name == "age" else f for f in cloud.fields))
        asked: list[Answer] = []
        if self._labels is not None:
            asked.append(self._client.infer(self._model.name, cloud, version=self._options.version))
        if self._boxes is not None:
            asked.append(self._client.detect(self._model.name, cloud, version=self._options.version))
        return scan, asked

    def add(self, frame: Frame, scan: Scan, answers: Sequence[Answer]) -> None:
        """Adds a frame's scan and answers to the measures."""
        self._num_points += scan.cloud.num_points
        for answer in answers:
            self._answer = answer
            self._round_trips.append(answer.round_trip)
            self._server_times.append(sum(stage.seconds for stage in answer.stages))
            if isinstance(answer, Segmentation):
                self._add_labels(frame, scan, answer)
            elif isinstance(answer, Detections) and self._boxes is not None:
                self._boxes.add(scan, answer)

    def _add_labels(self, frame: Frame, scan: Scan, answer: Segmentation) -> None:
        labels, known = self._labels, scan.labels
        assert labels is not None
        assert known is not None
        # With --sweeps, the answer also has labels of the earlier sweeps' points. They follow those of the scan.
        found = answer.labels[: len(known)].astype(np.int64)
        if len(found) != len(known):
            raise DatasetError(f"{frame.name}: {len(known)} labels, but {len(found)} points were labelled")
        place = {class_id: row for row, class_id in enumerate(labels.ids)}
        there, which, counts = np.unique(known, return_inverse=True, return_counts=True)
        to_row = np.array([labels.row(self._dataset, label) for label in there.tolist()], np.int64)
        for label, row, count in zip(there.tolist(), to_row.tolist(), counts.tolist(), strict=True):
            if row == segmentation.IGNORED:
                name = self._dataset.label_names.get(label) or self._dataset.other_labels.get(label)
                labels.not_counted[name or f"label {label}"] += count
        truth = to_row[which.reshape(-1)] if len(known) else np.zeros(0, np.int64)
        of_found = np.full(int(found.max(initial=0)) + 1, len(labels.ids))
        for class_id, row in place.items():
            if class_id < len(of_found):
                of_found[class_id] = row
        rows = of_found[found]
        points = np.stack([scan.cloud.values(axis) for axis in "xyz"], axis=1)[: len(known)]
        if self._options.unit == "voxels":
            first = first_of_voxels(points, self._model.voxel_size)
            truth, rows, points = truth[first], rows[first], points[first]
        distances = np.hypot(points[:, 0], points[:, 1])
        labels.counts[0] += segmentation.confusion(truth, rows, len(labels.ids))
        for index, (low, high) in enumerate(self._bins, 1):
            near = (distances >= low) & (distances < high)
            labels.counts[index] += segmentation.confusion(truth[near], rows[near], len(labels.ids))

    def report(self, num_frames: int) -> dict[str, Any]:
        """Returns the report as values that JSON can hold."""
        answer = self._answer
        assert answer is not None
        report: dict[str, Any] = {
            "dataset": self._options.dataset,
            "layout": self._dataset.layout,
            "frames": num_frames,
            "points": self._num_points,
            "model": answer.model,
            "version": answer.version,
            "digest": self._model.digest,
            "device": answer.device,
            "latency_ms": {"round_trip": _percentiles(self._round_trips), "server": _percentiles(self._server_times)},
            "left_out": list(dict.fromkeys(self._left_out)),
            "notes": self._notes,
            "not_counted": {},
        }
        if self._labels is not None:
            report["segmentation"] = self._segmentation(self._labels)
            report["not_counted"]["points"] = dict(self._labels.not_counted.most_common())
        if self._boxes is not None:
            report["detection"] = self._boxes.result(self._bins)
            report["not_counted"] |= self._boxes.not_counted()
        return report

    def _segmentation(self, labels: _Labels) -> dict[str, Any]:
        names = {info.id: info.name for info in self._model.classes}
        known = set(labels.match.ids.values())
        judged = np.array([class_id in known for class_id in labels.ids], bool)
        found = labels.counts[0].sum(axis=0)
        others = {names[i]: int(found[row]) for row, i in enumerate(labels.ids) if found[row] and not judged[row]}
        scores = segmentation.scores(labels.counts[0], judged)
        near = [segmentation.scores(counts, judged) for counts in labels.counts[1:]]
        return {
            "unit": self._options.unit,
            "count": int(scores.points.sum()),
            "mIoU": segmentation.known(scores.mean_iou),
            "accuracy": segmentation.known(scores.accuracy),
            "classes": [
                {"name": names[class_id], "count": int(scores.points[row]), "iou": segmentation.known(scores.ious[row])}
                for row, class_id in enumerate(labels.ids)
            ],
            "by_distance": [
                {
                    "from": low,
                    "to": segmentation.known(high),
                    "count": int(part.points.sum()),
                    "mIoU": segmentation.known(part.mean_iou),
                    "accuracy": segmentation.known(part.accuracy),
                    "classes": [segmentation.known(iou) for iou in part.ious],
                }
                for (low, high), part in zip(self._bins, near, strict=True)
            ],
            "found_others": others,  # points that got a class that the data set does not have
            "without_class": int(found[-1]),  # points that got none of the model's classes
            "confusion": labels.counts[0].tolist(),
        }


def first_of_voxels(points: Any, voxel_size: Sequence[float]) -> Any:
    """Returns the indices of the points [N, 3] that are the first ones in their voxels, ascending. Skips points that
    are not finite. ValueError if voxel_size, in metres, is not that of voxels.
    """
    if len(voxel_size) < 3 or min(voxel_size) <= 0:
        raise ValueError("--unit voxels: the model has no voxels")
    finite = np.flatnonzero(np.isfinite(points).all(axis=1))
    cells = np.rint(points[finite] / np.asarray(voxel_size[:3], np.float32)).astype(np.int64)
    _, first = np.unique(cells, axis=0, return_index=True)
    return finite[np.sort(first)]


def _bins(edges: Sequence[float]) -> Bins:
    return list(zip((0.0, *edges), (*edges, float("inf")), strict=True)) if edges else []


def _percentiles(seconds: Sequence[float]) -> dict[str, float]:
    values = 1e3 * np.array(seconds)
    return {"p50": float(np.percentile(values, 50)), "p99": float(np.percentile(values, 99))}


def _edges(text: str) -> tuple[float, ...]:
    try:
        edges = tuple(real(part) for part in text.split(",") if part)
    except ValueError:
        edges = (-1.0,)
    if any(low >= high for low, high in zip((0.0, *edges), edges, strict=False)):
        raise argparse.ArgumentTypeError(f"is '{text}', must be growing numbers of metres such as 20,40")
    return edges


def _codes(text: str) -> tuple[int, ...]:
    parts = text.split(",")
    if not all(part.isascii() and part.isdigit() for part in parts):
        raise argparse.ArgumentTypeError(f"is '{text}', must be codes such as 0,1")
    return tuple(map(int, parts))


def _metres(text: str) -> float:
    return arguments.positive(text, "a number of metres")


def _parser() -> argparse.ArgumentParser:
    parser = FlagParser(
        prog="python -m voxserve.evaluate",
        description=_DESCRIPTION,
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("dataset", metavar="DATASET|FOUND", help="the folder of the labelled data set; or a labelled file or folder")
    add("truth", nargs="?", default="", metavar="TRUTH", help="a file of the same points, or a folder of such files")
    add("--model", default="", metavar="NAME", help="the model to measure on a data set")
    add("--version", type=arguments.count(1), default=0, metavar="N", help="the model's version (default: the newest)")
    add("--layout", choices=tuple(LAYOUTS), default="", help="the layout of the folder, if it is not recognised")
    add(
        "--frames",
        default="",
        metavar="LIST|FILE",
        help="measures only these frames: numbers (60-79), names of frames, sequences or scenes (08,09), or a file of "
        "names",
    )
    add(
        "--classes",
        default="",
        metavar="FILE",
        help='matches classes, as JSON: {"model\'s class": ["data set\'s class", ...]}',
    )
    arguments.add_fields(parser, "the layout of the points, as in voxserve infer --help")
    add(
        "--sweeps",
        type=arguments.count(1, 64),
        default=1,
        metavar="N",
        help="the server merges N sweeps of nuScenes (default 1)",
    )
    add(
        "--min_points",
        type=arguments.count(0),
        default=1,
        metavar="N",
        help="ignores true boxes with fewer points, if the data set says how many points a box has (default 1)",
    )
    add("--max_distance", type=_metres, metavar="M", help="ignores boxes beyond M metres (default: as nuScenes)")
    add(
        "--distances",
        type=_edges,
        default=(20.0, 40.0),
        metavar="M,...",
        help="the ends of the ranges in metres (default 20,40)",
    )
    add(
        "--unit",
        choices=("points", "voxels"),
        default="points",
        help="counts the labels of all points, or only of the first point of each voxel (default points)",
    )
    add(
        "--concurrency",
        type=arguments.count(1, 64),
        default=1,
        metavar="N",
        help="up to N requests are in flight at once (default 1)",
    )
    add("--found_field", default="", metavar="NAME", help="the column of FOUND's codes (default: classification)")
    add("--truth_field", default="", metavar="NAME", help="the column of TRUTH's codes (default: classification)")
    add("--ignore", type=_codes, default=(), metavar="CODE,...", help="codes of TRUTH that do not count")
    add("--save", default="", metavar="FILE", help="writes the report as JSON")
    arguments.add_connection(parser, 60)
    return parser
