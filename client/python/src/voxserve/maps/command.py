"""Parses the command line and labels large point clouds in tiles.

Exit status: 0 done, 1 something failed, 2 wrong usage.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from voxserve import errors, pieces
from voxserve.cli import arguments
from voxserve.cli.connection import connect
from voxserve.cli.ending import termination_interrupts
from voxserve.cli.flag_parser import FlagParser
from voxserve.cli.infer import advise
from voxserve.cli.manifest import Manifest
from voxserve.cli.scan_jobs import UsageError
from voxserve.feature_warning import BY_FIELDS, told_on_stderr
from voxserve.maps import job
from voxserve.maps.votes import MAX_TURNS
from voxserve.numbers import real

_DESCRIPTION = """\
Labels point clouds of any size: reads LAS, LAZ, COPC, E57, PLY, PCD, Feather and Parquet in pieces, sends them to the
server in tiles that overlap, lets the tiles vote, and writes a copy with every dimension of the input, the column
classification, a confidence and a legend. Killed at any moment, the same command goes on. The labels depend neither on
the order of the tiles nor on their number in flight. Needs: pip install 'voxserve[maps]'
"""
_EXAMPLES = """\
examples:
  python -m voxserve.maps tile.laz --model minkunet --save labelled.laz
  python -m voxserve.maps survey/ --model minkunet --save labelled/ --manifest labelled.jsonl
  python -m voxserve.maps scan.e57 --model m --save labelled.e57 --passes 2 --turns 4 --islands 10 --codes asprs
  python -m voxserve.maps town.laz --model m --save town.parquet --fields reflectance=intensity*0.0002
"""


def main(arguments_: Sequence[str] | None = None) -> int:
    """Runs the command and returns the exit status."""
    parser = make_parser()
    options = parser.parse_args(arguments_)
    if options.overlap is not None and options.overlap > options.tile / 2:
        parser.error("--overlap is more than half of --tile")
    try:
        with termination_interrupts(), told_on_stderr("voxserve.maps", BY_FIELDS):
            return run(options)
    except UsageError as error:
        print(f"voxserve.maps: {error}; see python -m voxserve.maps --help", file=sys.stderr)
        return 2
    except (errors.InferenceError, OSError, ValueError) as error:
        print(f"voxserve.maps: {advise(error)}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("voxserve.maps: interrupted; the same command goes on from there", file=sys.stderr)
        return 130


def run(options: argparse.Namespace) -> int:
    """Labels every file of the command line, and returns the exit status. UsageError for a wrong command line."""
    jobs = job.plan(options)
    channels = min(options.concurrency, 4)
    num_failed, is_folder = 0, not pieces.is_writable(options.save)
    with connect(options, channels=channels) as client, Manifest(options.manifest) as manifest:
        runner = job.Runner(options, client)
        if not is_folder:
            report = runner.run(jobs[0])
            manifest.add(report.row())
            print(report.text(), end="")
            return 0
        for each in jobs:
            if is_folder and runner.is_done(each):
                continue
            try:
                report = runner.run(each)
            except (errors.InferenceError, OSError, ValueError) as error:
                num_failed += 1
                text = advise(error)
                print(f"voxserve.maps: {text if each.input in text else f'{each.input}: {text}'}", file=sys.stderr)
                manifest.add(job.failure(each, error))
                if isinstance(error, errors.UnavailableError):
                    raise  # no other file has better chances
                continue
            manifest.add(report.row())
            print(report.text(), end="", flush=True)
    if num_failed:
        print(f"voxserve.maps: {num_failed} of {len(jobs)} files failed", file=sys.stderr)
    return 1 if num_failed else 0


def _metres(text: str) -> float:
    return arguments.positive(text, "a number of metres")


def _metres_or_none(text: str) -> float:
    return 0.0 if text == "0" else _metres(text)


def _share(text: str) -> float:
    try:
        value = real(text)
    except ValueError:
        value = -1.0
    if not 0 <= value <= 1:
        raise argparse.ArgumentTypeError(f"is '{text}', must be 0 to 1")
    return value


def _signed(text: str) -> float:
    try:
        return real(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"is '{text}', must be a number of metres") from None


def make_parser() -> argparse.ArgumentParser:
    """Returns the parser of the command line."""
    parser = FlagParser(
        prog="python -m voxserve.maps",
        description=_DESCRIPTION,
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = parser.add_argument
    add(
        "clouds", nargs="+", metavar="FILE|FOLDER", help="the clouds; a folder stands for all clouds in it and below it"
    )
    add("--model", required=True, metavar="NAME", help="the model that labels the points")
    add("--version", type=arguments.count(1), default=0, metavar="N", help="the model's version (default: the newest)")
    add(
        "--save",
        required=True,
        metavar="FILE|FOLDER",
        help="the labelled copy: .las .laz .copc.laz .e57 .ply .pcd .feather .parquet, or the codes alone as .label or "
        ".npy; a folder mirrors the input's folders",
    )
    add("--format", default="", metavar="EXT", help="the format of files in the folder --save (default: the input's)")
    arguments.add_fields(parser, "the layout of a .bin file")
    add("--tile", type=_metres, default=50.0, metavar="M", help="the edge of a tile in metres (default 50)")
    add(
        "--overlap",
        type=_metres_or_none,
        metavar="M",
        help="a tile is sent with the points up to this far around it (default: the model's reach, which the server "
        "tells, or 5 if it is unbounded; at most a quarter of --tile)",
    )
    add("--passes", type=arguments.count(1, 2), default=1, metavar="N", help="2: tiles moved by half a tile vote too")
    add(
        "--turns",
        type=arguments.count(1, MAX_TURNS),
        default=1,
        metavar="N",
        help="N copies of each tile, turned about z, vote (default 1)",
    )
    add(
        "--height",
        type=_signed,
        default=0.0,
        metavar="M",
        help="the height of a tile's ground in the coordinates that the model gets, e.g. -1.8 for a model of a "
        "vehicle's scans (default 0)",
    )
    add(
        "--tile_points",
        type=arguments.count(1),
        default=0,
        metavar="N",
        help="a request has at most this many points; less needs less memory (default: as many as the model takes and "
        "--max_message_bytes lets pass)",
    )
    add(
        "--metres_per_unit",
        type=_metres,
        default=0.0,
        metavar="M",
        help="the unit of the coordinates, e.g. 0.3048 for feet (default: as the file's header says, or metres)",
    )
    add(
        "--codes",
        default="",
        metavar="asprs|NAME=CODE,...",
        help="the codes of the classes (default: the model's class ids); unclassified=CODE: of points without one",
    )
    add(
        "--unclassified_below",
        type=_share,
        default=0.0,
        metavar="SHARE",
        help="points with less confidence are unclassified (default 0: none)",
    )
    add(
        "--islands",
        type=arguments.count(0, 10_000),
        default=0,
        metavar="N",
        help="connected points of a class that are fewer than N get the class around them (default 0: none do)",
    )
    add("--island_size", type=_metres, default=1.0, metavar="M", help="points this close are connected (default 1)")
    add("--manifest", default="", metavar="FILE", help="writes a line for each file: .jsonl, or .parquet")
    add("--work", default="", metavar="FOLDER", help="where the work folders are (default: beside the results)")
    add("--keep_work", action="store_true", help="keeps the work folder, so that --codes, --unclassified_below and "
        "--islands can be changed without asking the server again")  # fmt: skip
    add(
        "--retry",
        type=arguments.duration,
        default=300.0,
        metavar="TIME",
        help="a request is repeated for this time while no server answers or its queue is full (default 5m)",
    )
    add(
        "--concurrency",
        type=arguments.count(1, 64),
        default=2,
        metavar="N",
        help="up to N tiles are in flight at once (default 2)",
    )
    arguments.add_connection(parser, 600)
    return parser
