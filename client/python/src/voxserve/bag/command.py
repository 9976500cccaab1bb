"""Parses the command line and labels a drive.

Exit status: 0 done, 1 something failed, 2 wrong usage, 3 done but messages that cannot be used were skipped.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path

import numpy as np

from voxserve import errors
from voxserve.bag.bag_error import BagError
from voxserve.bag.labelling import Poses, Request, label
from voxserve.bag.messages import Colors
from voxserve.bag.sink import Sink, job_of
from voxserve.bag.source import Raw, Skipped, Source, Sweep
from voxserve.cli import arguments
from voxserve.cli.connection import connect, ready
from voxserve.cli.ending import termination_interrupts
from voxserve.cli.flag_parser import FlagParser
from voxserve.cli.infer import advise, warn_of_new_names
from voxserve.cli.intensity_warning import IntensityWarning
from voxserve.cli.progress import Progress
from voxserve.client import Client
from voxserve.feature_warning import BY_SCALE, settle_bits, told_on_stderr
from voxserve.numbers import real
from voxserve.printable import printable

_DESCRIPTION = """\
Labels the clouds of a recorded drive, or finds boxes in them, and writes an MCAP file that Foxglove, RViz and Rerun
open. Reads rosbag2 (mcap or sqlite3; a file, or its folder) and ROS 1 bags. For a topic /lidar it writes
/lidar/labelled (each point's bytes unchanged, then rgb and label), /lidar/boxes (foxglove.SceneUpdate),
/lidar/markers (MarkerArray), /lidar/timing and tf. A message that cannot be used is skipped: stderr and /lidar/skipped
name it and say why, and the exit status is 3. Needs: pip install 'voxserve[bag]'
"""
_MOST_TOLD = 10  # skipped messages that stderr names
_MOST_BAD = 100  # messages at the beginning of a drive; if none of them can be labelled, the rest is not tried
_EXAMPLES = """\
examples:
  python -m voxserve.bag drive.mcap --topic /lidar --model minkunet --save labelled.mcap
  python -m voxserve.bag drive.bag --model centerpoint --sweeps 10 --pose tf --save boxes.mcap
  python -m voxserve.bag drive/ --model second --scale intensity=0.00392 --rate 1 --save boxes.mcap
"""


def main(arguments_: Sequence[str] | None = None) -> int:
    """Runs the command and returns the exit status."""
    parser = make_parser()
    options = parser.parse_args(arguments_)
    if options.sweeps > 1 and not options.pose:
        parser.error("--sweeps needs --pose: tf, or the topic that has the vehicle's poses")
    if options.fixed_frame and options.pose != "tf":
        parser.error("--fixed_frame goes with --pose tf")
    save, bag = Path(options.save).resolve(), Path(options.bag).resolve()
    if save == bag:
        parser.error("--save names the bag itself")
    if save.parent == bag and not (bag / "metadata.yaml").is_file():
        parser.error("--save lies in the bag's folder, and without a metadata.yaml all of the folder's files are read")
    if not options.save.endswith(".mcap"):
        parser.error("--save names a .mcap file")
    try:
        with termination_interrupts(), told_on_stderr("voxserve.bag", BY_SCALE):
            summary, num_skipped = run(options)
            print(summary)
    except (errors.InferenceError, OSError, ValueError) as error:
        print(f"voxserve.bag: {advise(error)}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("voxserve.bag: interrupted", file=sys.stderr)
        return 130
    return 3 if num_skipped else 0


def run(options: argparse.Namespace) -> tuple[str, int]:
    """Labels the bag and writes the MCAP file. Returns a line that says how many clouds were labelled, and how fast,
    and the number of messages that were skipped. Raises InferenceError, OSError or ValueError.
    """
    with Source(options.bag) as source:
        topic = source.topic(options.topic)
        poses = Poses.read(source, options.pose, options.fixed_frame) if options.pose else None
        with connect(options) as client:
            model = ready(client, options.model, options.version)
            warn_of_new_names("voxserve.bag", options.fields, model)
            settle_bits(model.name, model.features, options.fields)
            request = Request(model, topic, options.sweeps, options.rate, dict(options.scale) or None)
            job = job_of(
                bag=str(Path(options.bag).resolve()),
                bytes=source.num_bytes,
                topic=topic,
                model=f"{model.name} {model.version} {model.digest}",
                sweeps=options.sweeps,
                pose=f"{options.pose} {options.fixed_frame}",
                scale=sorted(options.scale),
                integers="by type",
                fields=options.fields,
                rate=options.rate,
            )
            sink = Sink(options.save, topic, job, Colors.of(model.classes))
            try:
                # A Source serves one thread at a time, and another thread reads the clouds from `source`. So the
                # messages of tf are read from a second one.
                with Source(options.bag) as other:
                    summary = _label_all(options, source, client, request, poses, sink, other)
                    return summary, sink.num_skipped
            except BaseException:
                if sink.abandon():
                    print(
                        f"voxserve.bag: {sink.part} holds the first {sink.num_sweeps} clouds; the same command goes on "
                        "from there",
                        file=sys.stderr,
                    )
                raise


def _label_all(
    options: argparse.Namespace,
    source: Source,
    client: Client,
    request: Request,
    poses: Poses | None,
    sink: Sink,
    other: Source,
) -> str:
    topic, first = request.topic, sink.first
    total, before = source.count(topic), sink.num_sweeps
    report = _SkipReport(sink)
    units = UnitReport("voxserve.bag", request)
    for skipped in source.skipped:
        report.add(skipped)
    transforms = other.transform_messages()
    waiting = next(_without_first(transforms, sink.num_copied), None)
    times: list[float] = []
    start = time.perf_counter()
    # A run that continues begins num_sweeps - 1 sweeps earlier, since the server merges them with the first new one.
    sweeps = source.sweeps(topic, max(0, first - request.num_sweeps + 1), options.fields)
    with Progress(total, "clouds") as progress:
        for item in label(client, request, sweeps, poses, first):
            if isinstance(item, Skipped):
                report.add(item)
                if not sink.num_sweeps and report.num_clouds(topic) >= _MOST_BAD:
                    raise report.none_labelled(topic)
                continue
            sweep, result = item
            units.look_at(sweep)
            while waiting is not None and waiting.time_ns <= sweep.time_ns:
                sink.copy(waiting)
                waiting = next(transforms, None)
            sink.write(sweep, (result.segmentation, result.detections, result.tensors))
            answer = result.segmentation or result.detections
            if answer is not None:
                times.append(1e3 * sum(stage.seconds for stage in answer.stages))
            progress.update(sweep.index + 1, f", {times[-1]:.0f} ms" if times else "")
    if not sink.num_sweeps and report.num_clouds(topic):
        raise report.none_labelled(topic)
    for raw in chain([waiting] if waiting is not None else [], transforms):
        sink.copy(raw)
    for skipped in other.skipped:
        report.add(skipped)
    sink.finish()
    text = f"wrote {options.save}: {sink.num_sweeps} of {total} clouds of {topic}"
    if before:
        text += f", {before} of them before"
    if times:
        p50, p99 = np.percentile(times, [50, 99])
        text += (
            f"; {len(times) / (time.perf_counter() - start):.1f}/s, at the server p50 {p50:.1f} ms, p99 {p99:.1f} ms"
        )
    if sink.num_skipped:
        number = sink.num_skipped
        text += f"; skipped {number} message{'s' if number > 1 else ''}, named in {topic.rstrip('/')}/skipped"
    return text


class UnitReport:
    """Writes to stderr which unit an integer intensity has by its type, and warns of intensities in another unit than
    the model reads. Each message appears once.
    """

    def __init__(self, program: str, request: Request) -> None:
        self._program, self._request = program, request
        self._intensities = IntensityWarning(program, request.model, BY_SCALE)
        self._has_told = False

    def look_at(self, sweep: Sweep) -> None:
        if not sweep.cloud.num_points:  # it may have no fields
            return
        scales = self._request.scales or {}
        given = {name.lower() for name in scales}
        if not self._has_told:
            self._has_told = True
            features = {feature.name.lower() for feature in self._request.model.features} - given
            for field in sweep.cloud.fields:
                if field.scale != 1 and field.name.lower() in features:
                    print(
                        f"{self._program}: {field.name} is {field.type}, whose {1 / field.scale:.0f} counts as 1; "
                        f"--scale {field.name}=FACTOR says otherwise",
                        file=sys.stderr,
                    )
        self._intensities.look_at(f"message {sweep.index}", sweep.cloud.scaled(scales))


class _SkipReport:
    """Writes to stderr and to the file which messages are skipped."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self._skipped: list[Skipped] = []

    def add(self, skipped: Skipped) -> None:
        if not self._sink.skip(skipped):
            return
        self._skipped.append(skipped)
        if len(self._skipped) <= _MOST_TOLD:
            print(f"voxserve.bag: skipped {printable(str(skipped))}", file=sys.stderr)
        elif len(self._skipped) == _MOST_TOLD + 1:
            print("voxserve.bag: more messages are skipped", file=sys.stderr)

    def num_clouds(self, topic: str) -> int:
        return sum(skipped.topic == topic for skipped in self._skipped)

    def none_labelled(self, topic: str) -> BagError:
        """Returns the error for a drive without any cloud that could be labelled."""
        first = next(skipped for skipped in self._skipped if skipped.topic == topic)
        return BagError(f"none of the first {self.num_clouds(topic)} clouds of {topic} can be labelled; {first}")


def _without_first(raws: Iterator[Raw], number: int) -> Iterator[Raw]:
    for _ in range(number):
        next(raws, None)
    return raws


def _scale(text: str) -> tuple[str, float]:
    name, _, value = text.partition("=")
    try:
        factor = real(value)
    except ValueError:
        factor = 0.0
    if not name or not np.isfinite(factor) or factor == 0:
        raise argparse.ArgumentTypeError(f"is '{text}', must be NAME=FACTOR such as intensity=0.00392")
    return name, factor


def rate(text: str) -> float:
    """Returns the number that the value of --rate is. argparse.ArgumentTypeError if it is not positive."""
    return arguments.positive(text, "a positive number; 1 is the bag's own pace")


def add_request(parser: argparse.ArgumentParser) -> None:
    """Adds the options that bag and view share: which clouds of a bag are sent, and how."""
    add = parser.add_argument
    add("--topic", default="", help="the topic of the clouds (default: the only topic of type PointCloud2)")
    add("--version", type=arguments.count(1), default=0, metavar="N", help="the model's version (default: the newest)")
    add("--sweeps", type=arguments.count(1, 64), default=1, metavar="N", help="the server merges N sweeps (default 1)")
    add("--pose", default="", metavar="tf|TOPIC", help="the source of poses: tf, or a topic of Odometry or PoseStamped")
    add("--fixed_frame", default="", metavar="NAME", help="the frame of tf that does not move (default: its root)")
    arguments.add_fields(parser, "the layout of the points, as in voxserve infer --help")
    add(
        "--scale",
        type=_scale,
        action="append",
        default=[],
        metavar="NAME=FACTOR",
        help="multiplies the values of field NAME",
    )
    add(
        "--rate",
        type=rate,
        metavar="R",
        help="plays the bag at this multiple of its recorded pace and leaves out clouds that come faster than answers, "
        "as in a vehicle (default: every cloud, as fast as the server answers)",
    )


def make_parser() -> argparse.ArgumentParser:
    """Returns the parser of the command line."""
    parser = FlagParser(
        prog="python -m voxserve.bag",
        description=_DESCRIPTION,
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("bag", metavar="BAG", help="the recorded drive")
    parser.add_argument("--model", required=True, metavar="NAME", help="the model that labels the clouds")
    parser.add_argument("--save", required=True, metavar="FILE", help="the .mcap file to write")
    add_request(parser)
    arguments.add_connection(parser, 60)
    return parser
