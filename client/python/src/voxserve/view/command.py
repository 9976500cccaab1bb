"""Parses the command line and shows scans.

Exit status: 0 done, 1 something failed, 2 wrong usage.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from voxserve import errors, readers
from voxserve.bag.command import UnitReport, add_request
from voxserve.bag.labelling import Poses, Request, label
from voxserve.bag.open_recording import is_bag
from voxserve.bag.source import Skipped, Source
from voxserve.cli import arguments
from voxserve.cli.connection import connect, ready
from voxserve.cli.ending import termination_interrupts
from voxserve.cli.flag_parser import FlagParser
from voxserve.cli.infer import advise, warn_of_new_names
from voxserve.cli.intensity_warning import IntensityWarning
from voxserve.cli.progress import Progress
from voxserve.client import Client
from voxserve.feature_warning import BY_SCALE, settle_bits, told_on_stderr
from voxserve.printable import printable
from voxserve.results import ClassInfo, ModelVersion
from voxserve.view import labelled_bag
from voxserve.view.viewer import Shown, Viewer, ViewError

_DESCRIPTION = """\
Shows scans in Rerun (without its usage statistics): points in the colours of their classes, boxes and the time of each
answer, on one timeline. SOURCE is a folder of scans, a scan, a bag (with --model), or a bag that python -m
voxserve.bag has labelled. With --follow new scans of the folder are shown as they come, until Ctrl-C.
Needs: pip install 'voxserve[view]' (and 'voxserve[bag]' for bags)
"""
_EXAMPLES = """\
examples:
  python -m voxserve.view labelled.mcap
  python -m voxserve.view drive.mcap --model minkunet --topic /lidar --rate 1
  python -m voxserve.view scans/ --model minkunet --web 9090       # in a browser of this machine
  python -m voxserve.view /data/live --model minkunet --follow
  python -m voxserve.view scans/ --model minkunet --record drive.rrd
"""
_POLL_SECONDS = 0.05


def main(arguments_: Sequence[str] | None = None) -> int:
    """Runs the command and returns the exit status."""
    parser = _parser()
    options = parser.parse_args(arguments_)
    if sum(map(bool, (options.record, options.web, options.connect))) > 1:
        parser.error("--record, --web and --connect are one or another")
    if options.sweeps > 1 and not options.pose:
        parser.error("--sweeps needs --pose: tf, or the topic that has the vehicle's poses")
    if options.follow and not Path(options.source).is_dir():
        parser.error("--follow needs a folder")
    try:
        with termination_interrupts(), told_on_stderr("voxserve.view", BY_SCALE):
            number = run(options)
        print(f"{number} scans shown" + (f", in {options.record}" if options.record else ""))
    except (errors.InferenceError, OSError, ValueError) as error:
        print(f"voxserve.view: {advise(error)}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


def run(options: argparse.Namespace) -> int:
    """Shows the scans and returns their number. Raises InferenceError, OSError or ValueError."""
    if labelled_bag.is_labelled(options.source):
        return _show(options, (), labelled_bag.read(options.source))
    if not options.model:
        raise ViewError(f"{options.source}: --model says who labels it; it is no bag that voxserve.bag has labelled")
    with connect(options) as client:
        model = ready(client, options.model, options.version)
        warn_of_new_names("voxserve.view", options.fields, model)
        settle_bits(model.name, model.features, options.fields)
        if is_bag(Path(options.source)):
            with Source(options.source) as source:
                return _show(options, model.classes, _bag(options, source, client, model))
        return _show(options, model.classes, _scans(options, client, model))


def _show(options: argparse.Namespace, classes: Sequence[ClassInfo], scans: Iterator[Shown]) -> int:
    number = 0
    # The first scan is read before the viewer opens, so that no viewer opens if it cannot be read.
    first = next(scans, None)
    if first is None:
        raise ViewError(f"{options.source}: nothing to show")
    with Viewer(classes, save=options.record, web_port=options.web, connect=options.connect) as viewer:
        if viewer.address:
            print(f"open {viewer.address}", flush=True)
        with Progress(0, "scans") as progress:
            shown: Shown | None = first
            while shown is not None:
                viewer.show(shown)
                number += 1
                progress.update(number)
                shown = next(scans, None)
        if viewer.address and options.stay:
            print("all is shown; interrupt to end", flush=True)
            while True:
                time.sleep(1)
    return number


def _bag(options: argparse.Namespace, source: Source, client: Client, model: ModelVersion) -> Iterator[Shown]:
    topic = source.topic(options.topic)
    poses = Poses.read(source, options.pose, options.fixed_frame) if options.pose else None
    request = Request(model, topic, options.sweeps, options.rate, dict(options.scale) or None)
    units = UnitReport("voxserve.view", request)
    for skipped in source.skipped:
        print(f"voxserve.view: skipped {printable(str(skipped))}", file=sys.stderr)
    for item in label(client, request, source.sweeps(topic, fields=options.fields), poses, 0):
        if isinstance(item, Skipped):
            print(f"voxserve.view: skipped {printable(str(item))}", file=sys.stderr)
            continue
        sweep, result = item
        units.look_at(sweep)
        yield Shown.of_result(sweep.index, sweep.cloud, result.segmentation, result.detections)


def _scans(options: argparse.Namespace, client: Client, model: ModelVersion) -> Iterator[Shown]:
    intensities = IntensityWarning("voxserve.view", model, BY_SCALE)
    scales = dict(options.scale)
    for index, path in enumerate(_files(Path(options.source), options.follow)):
        cloud = readers.read(path, options.fields).scaled(scales)
        intensities.look_at(str(path), cloud)
        asked: dict[str, Any] = {"version": model.version, "scales": scales}  # as arguments they are not doubted
        labels = client.infer(model.name, cloud, **asked) if model.has_labels else None
        found = client.detect(model.name, cloud, **asked) if labels is None else labels.detections
        if options.follow and cloud.stamp_ns is None:
            cloud = replace(cloud, stamp_ns=time.time_ns())
        yield Shown.of_result(index, cloud, labels, found)


def _files(source: Path, is_followed: bool) -> Iterator[Path]:
    """Yields a scan, or the scans of a folder in the order of their names. With is_followed it goes on, and yields each
    new scan of the folder when its file has stopped growing.
    """
    if not source.exists():
        raise ViewError(f"{source}: no such file or folder")
    if not source.is_dir():
        yield source
        return
    done: set[Path] = set()
    sizes: dict[Path, int] = {}
    while True:
        found = sorted(path for path in source.iterdir() if path.is_file() and readers.is_point_cloud_file(path))
        if not found and not is_followed:
            raise ViewError(f"{source}: the folder has no scans (.bin, .pcd, .ply or .npy)")
        for path in found:
            size = path.stat().st_size
            if path not in done and (not is_followed or sizes.get(path) == size):
                done.add(path)
                yield path
            sizes[path] = size
        if not is_followed:
            return
        time.sleep(_POLL_SECONDS)


def _parser() -> argparse.ArgumentParser:
    parser = FlagParser(
        prog="python -m voxserve.view",
        description=_DESCRIPTION,
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("source", metavar="SOURCE", help="a scan, a folder of scans, or a bag")
    add("--model", default="", metavar="NAME", help="the model that labels the scans")
    add("--follow", action="store_true", help="shows new scans of the folder as they come")
    add("--record", default="", metavar="FILE", help="writes a recording (.rrd) and opens no viewer")
    add("--web", type=arguments.count(1024, 65534), metavar="PORT", help="serves the viewer on PORT and PORT + 1")
    add("--no_stay", dest="stay", action="store_false", help="ends after the last scan (with --web)")
    add("--connect", default="", metavar="URL", help="sends to a running viewer: rerun+http://HOST:9876/proxy")
    add_request(parser)
    arguments.add_connection(parser, 60)
    return parser
