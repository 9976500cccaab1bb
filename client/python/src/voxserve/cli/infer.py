"""The command infer: labels scans, or finds boxes in them, then prints and saves the results."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import Any

import numpy as np

from voxserve import box_file, errors, field_spec, label_file, readers, tensor_file
from voxserve.cli import report as reports
from voxserve.cli import scan_jobs
from voxserve.cli.box_counts import BoxCount, count_boxes
from voxserve.cli.connection import connect
from voxserve.cli.intensity_warning import IntensityWarning
from voxserve.cli.label_counts import Agreement, ClassCount, count_classes
from voxserve.cli.manifest import Manifest
from voxserve.cli.progress import Progress
from voxserve.cli.report import ScanReport, format_time
from voxserve.cli.scan_jobs import ScanJob, UsageError
from voxserve.client import Client
from voxserve.farthest_points import FarthestPoints
from voxserve.feature_warning import BY_FIELDS, settle_bits
from voxserve.point_cloud import PointCloud
from voxserve.printable import printable
from voxserve.results import ClassInfo, Detections, ModelState, ModelVersion, Segmentation, Tensors

MAX_CHANNELS = 4
_ADVICE = {
    "NO_SERVER": "start one (voxserve --model_repository deploy/models) or name its address with --address HOST:PORT",
    "TLS_FAILED": "--tls_ca names the roots of the server's certificate",
    "MISSING_TOKEN": "give the token with --token_file FILE, or in the environment as VOXSERVE_TOKEN",
    "UNKNOWN_TOKEN": "give the token with --token_file FILE, or in the environment as VOXSERVE_TOKEN",
    "SCOPE_TOO_SMALL": "the server's operator says what a token may do (--auth_tokens)",
    "CLIENT_TIMEOUT": "give it more with --timeout, e.g. --timeout 60s",
    "MISSING_FIELD": "a field of another name is named with --fields, e.g. --fields intensity=reflectivity",
    "MESSAGE_TOO_LARGE": "raise --max_message_bytes here and at the server",
    "MODEL_LOADING": "wait for it with: python -m voxserve health --wait 60s",
    "MODEL_NOT_FOUND": "python -m voxserve models lists what is served",
    "VERSION_NOT_FOUND": "python -m voxserve models lists what is served",
    "MODEL_FAILED": "python -m voxserve models NAME shows its problems",
    "UNSUPPORTED_OUTPUT": "python -m voxserve models NAME shows what the model answers",
    "QUEUE_FULL": "try again with a lower --concurrency",
}


def advise(error: Exception) -> str:
    """Returns the error's message, printable, followed by advice if _ADVICE has some for the error's reason."""
    if not isinstance(error, errors.InferenceError):
        return printable(str(error))
    advice = _ADVICE.get(error.reason)
    return printable(f"{error.message}; {advice}" if advice else error.message)


def warn_of_new_names(program: str, fields: str, model: ModelVersion) -> None:
    """Warns of new names in a field spec ("" for none) that the model does not read, such as misspelt names."""
    renames = field_spec.parse(fields).renames if fields and model.features else ()
    read = list(dict.fromkeys(("x", "y", "z", *(feature.name for feature in model.features))))
    sources = {rename.source for rename in renames}
    for rename in renames:
        if rename.name not in read and rename.name not in sources:
            print(
                f"{program}: warning: --fields names '{rename.name}', which {model.name} does not read; it reads "
                f"{', '.join(read)}",
                file=sys.stderr,
            )


def run(options: argparse.Namespace) -> int:
    """Runs the command and returns the exit status. UsageError for a wrong command line; main prints other errors."""
    if not options.sample and (options.sample_start or options.sample_use != "return"):
        raise UsageError("--sample_start and --sample_use are of --sample, which is missing")
    is_folder = options.save and not scan_jobs.is_file(options.save)
    jobs = scan_jobs.plan(options.scans, "" if is_folder else options.save, options.truth)
    channels = min(options.concurrency, MAX_CHANNELS) if len(jobs) > 1 else 1
    with connect(options, channels=channels) as client:
        model = client.model(options.model, options.version)
        if is_folder:  # the format of its files depends on the model
            extension = extension_of(model, options)
            jobs = scan_jobs.plan(options.scans, options.save, options.truth, extension)
        check_for(model, options, jobs)
        runner = ScanRunner(options, client, model)
        if len(jobs) == 1:
            return _run_one(jobs[0], runner)
        with Manifest("") as manifest:
            return run_many(jobs, runner, manifest)


def check_for(model: ModelVersion, options: argparse.Namespace, jobs: Sequence[ScanJob]) -> None:
    """Raises UsageError for arguments that contradict the model's outputs. If the model is not ready, its outputs are
    unknown; then this function does nothing, and the server reports the error.
    """
    if model.state is not ModelState.READY:
        return
    if asks_tensors(model, options):
        if options.truth:
            raise UsageError(f"--truth compares labels, but {model.name} answers with tensors here")
        if jobs[0].save and not tensor_file.is_tensor_file(jobs[0].save):
            raise UsageError(f"--save {jobs[0].save}: {model.name} answers with tensors, written as .npz")
        return
    if options.tensor_type != "float32":
        kinds = [kind for kind, there in (("labels", model.has_labels), ("boxes", model.has_boxes)) if there]
        raise UsageError(f"--tensor_type needs --outputs, as {model.name} answers with {' and '.join(kinds)}")
    if options.truth and not model.has_labels:
        raise UsageError(f"--truth compares labels, but {model.name} answers with boxes")
    save = jobs[0].save  # all have the same extension
    formats = []
    if model.has_labels and not label_file.is_label_file(save):
        formats.append("labels, written as .npy or .label")
    if model.has_boxes and not box_file.is_box_file(save):
        formats.append(f"boxes, written as .json{' or .csv' if model.has_labels else ', .csv or .npy'}")
    if save and len(formats) == model.has_labels + model.has_boxes:
        raise UsageError(f"--save {save}: {model.name} answers with {', and '.join(formats)}")


def asks_tensors(model: ModelVersion, options: argparse.Namespace) -> bool:
    is_ready = model.state is ModelState.READY
    return bool(options.outputs) or (is_ready and not model.has_labels and not model.has_boxes)


def extension_of(model: ModelVersion, options: argparse.Namespace) -> str:
    """Returns the extension of the files in a folder of results."""
    if asks_tensors(model, options):
        return ".npz"
    return f".{options.format.lstrip('.')}" if options.format else ".npy"


class ScanRunner:
    """Runs the scans of one command line and writes the outputs that the command line names. Asks the model for tensors
    if the command line names some or the model has no other outputs. Otherwise asks for labels, with which a model that
    has both answers its boxes too, or for boxes. Thread-safe.
    """

    def __init__(self, options: argparse.Namespace, client: Client, model: ModelVersion) -> None:
        self.options = options
        self.model = model
        self._client = client
        self._intensities = IntensityWarning("voxserve", model, BY_FIELDS)
        warn_of_new_names("voxserve", options.fields, model)
        settle_bits(model.name, model.features, options.fields)

    def run(self, job: ScanJob) -> ScanReport:
        """Runs one scan, and saves the answer if the command line asks for it."""
        cloud = readers.read(job.input, self.options.fields)
        self._intensities.look_at(job.input, cloud)
        truth = label_file.read(job.truth, cloud.num_points) if job.truth else None
        result = self._ask(cloud)
        report = ScanReport(job.input, _without_values(result), cloud.num_points, [])
        if isinstance(result, Segmentation):
            classes = self.model.classes
            report.classes = count_classes(result.labels, result.ignore_label, classes)
            if truth is not None:
                report.agreement = Agreement.compare(result.labels, truth, result.ignore_label, classes)
                report.truth = job.truth
        if job.save:
            _write(job.save, result)
            report.written.append(job.save)
        return report

    def _ask(self, cloud: PointCloud) -> Segmentation | Detections | Tensors:
        name, options = self.model.name, self.options
        common: dict[str, Any] = {"version": options.version, "sample": _sample_of(options), "compact": options.compact}
        if asks_tensors(self.model, options):
            return self._client.tensors(name, cloud, outputs=options.outputs, tensor_type=options.tensor_type, **common)
        has_boxes_alone = self.model.has_boxes and not self.model.has_labels
        return (self._client.detect if has_boxes_alone else self._client.infer)(name, cloud, **common)


def _write(path: str, result: Segmentation | Detections | Tensors) -> None:
    boxes = box_file.boxes_of(result)
    if isinstance(result, Segmentation) and label_file.is_label_file(path):
        label_file.write(path, result.labels)
    elif boxes is not None:
        box_file.write(path, boxes)
    elif isinstance(result, Tensors):
        tensor_file.write(path, result.tensors)


def _without_values(result: Segmentation | Detections | Tensors) -> Segmentation | Detections | Tensors:
    """Returns the parts that a report needs: no labels, and of tensors only the shapes. run_many holds the reports of
    all scans until the last one is done.
    """
    if isinstance(result, Segmentation):
        return dataclasses.replace(result, labels=np.zeros(0, np.uint8))
    if isinstance(result, Detections):
        return result
    shapes = {
        # broadcast_to makes an array of this shape that stores a single element.
        name: dataclasses.replace(
            tensor, rows=np.broadcast_to(np.zeros((), tensor.rows.dtype), tensor.rows.shape), coordinates=None
        )
        for name, tensor in result.tensors.items()
    }
    return dataclasses.replace(result, tensors=shapes)


def _sample_of(options: argparse.Namespace) -> FarthestPoints | None:
    if not options.sample:
        return None
    return FarthestPoints(options.sample, use=options.sample_use, start_index=options.sample_start)


def _run_one(job: ScanJob, runner: ScanRunner) -> int:
    options = runner.options
    try:
        report = runner.run(job)
    except (errors.InferenceError, OSError, ValueError) as error:
        if options.json and not isinstance(error, UsageError):
            print(_json_error(job, error), end="")
        raise
    if options.json:
        print(reports.format_json(report, runner.model.classes), end="")
        return 0
    print(reports.format_report(report, runner.model.classes), end="")
    return 0


class _Totals:
    """The sums over all scans of one command."""

    def __init__(self) -> None:
        self.round_trips: list[float] = []
        self.num_points = self.num_written = 0
        self.agreement: Agreement | None = None
        self.boxes: list[BoxCount] = []
        self.failures: list[str] = []
        self._counts: dict[int, ClassCount] = {}

    def add(self, report: ScanReport, classes: Sequence[ClassInfo]) -> None:
        self.round_trips.append(report.result.round_trip)
        self.num_points += report.num_points
        self.num_written += len(report.written)
        for count in report.classes:
            old = self._counts.get(count.id)
            number = count.num_points + (old.num_points if old else 0)
            self._counts[count.id] = dataclasses.replace(count, num_points=number)
        if (boxes := box_file.boxes_of(report.result)) is not None:
            self.boxes = count_boxes(boxes, classes, self.boxes)
        if report.agreement is not None:
            self.agreement = self.agreement or Agreement()
            self.agreement.add(report.agreement)

    def counts(self) -> list[ClassCount]:
        """Returns the counts of all classes, in descending order of their points."""
        ordered = sorted(self._counts.values(), key=lambda count: -count.num_points)
        return [dataclasses.replace(count, share=count.num_points / self.num_points) for count in ordered]


def run_many(jobs: Sequence[ScanJob], runner: ScanRunner, manifest: Manifest) -> int:
    """Runs every job, prints a summary of all of them, and returns the exit status. Each gets a row in the manifest."""
    totals = _Totals()
    as_json = runner.options.json
    start = time.perf_counter()
    with Progress(len(jobs), "scans") as progress, ThreadPoolExecutor(runner.options.concurrency) as pool:
        futures = {pool.submit(runner.run, job): job for job in jobs}
        for num_done, future in enumerate(as_completed(futures), 1):
            job = futures[future]
            try:
                report = future.result()
            except (errors.InferenceError, OSError, ValueError) as error:
                text = advise(error)  # a text about a file already contains the file's name
                totals.failures.append(text if job.input in text else f"{job.input}: {text}")
                line = _json_error(job, error)
            else:
                totals.add(report, runner.model.classes)
                line = reports.format_json(report, runner.model.classes)
            if as_json:
                print(line, end="", flush=True)
            manifest.add(json.loads(line))
            progress.update(num_done)
    if totals.round_trips and not as_json:
        _print_totals(totals, time.perf_counter() - start, runner)
    if not totals.failures:
        return 0
    print(f"voxserve: {len(totals.failures)} of {len(jobs)} scans failed:", file=sys.stderr)
    for failure in sorted(totals.failures):
        print(f"  {failure}", file=sys.stderr)
    return 1


def _print_totals(totals: _Totals, elapsed: float, runner: ScanRunner) -> None:
    trips = sorted(totals.round_trips)
    print(
        f"{len(trips)} scans, {totals.num_points:,} points in {format_time(elapsed)} ({len(trips) / elapsed:.1f} "
        f"scans/s), round trip p50 {format_time(trips[len(trips) // 2])}, longest {format_time(trips[-1])}"
    )
    counts, classes = totals.counts(), runner.model.classes
    if not asks_tensors(runner.model, runner.options):  # shapes of tensors differ from scan to scan
        if runner.model.has_labels:
            print(reports.format_classes(counts, totals.agreement, totals.num_points, classes), end="")
        if runner.model.has_boxes:
            print(reports.format_box_counts(totals.boxes), end="")
    if totals.num_written:
        print(f"\nwrote {totals.num_written} files")


def _json_error(job: ScanJob, error: Exception) -> str:
    if isinstance(error, errors.InferenceError):
        return reports.format_json_error(job.input, error.code.name, error.reason, error.message)
    code = "NOT_FOUND" if isinstance(error, FileNotFoundError) else "INVALID_ARGUMENT"
    return reports.format_json_error(job.input, code, "", str(error))
