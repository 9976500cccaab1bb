"""Parses the command line, runs the command and prints errors.

Exit status: 0 done, 1 something failed (or the server does not serve), 2 wrong usage.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import voxserve
from voxserve import errors
from voxserve.cli import arguments, batch, infer, models, serve
from voxserve.cli.connection import connect
from voxserve.cli.flag_parser import FlagParser
from voxserve.cli.scan_jobs import UsageError
from voxserve.feature_warning import BY_FIELDS, told_on_stderr
from voxserve.printable import printable

_MODULE = "python -m voxserve"
_SERVING = """\
Serves models of this machine, named by a folder, or those of the package voxserve-models. Needs the package
voxserve-server. `voxserve serve --help` tells more.
"""
_POLL_SECONDS = 0.2
_INFER = """\
Reads scans, sends them to the server, and prints how many points each class has, the boxes that were found, or both if
the model has both, and the time of each stage. Reads KITTI .bin (float32 x, y, z, intensity), nuScenes
.pcd.bin (intensity 0..255 and ring), PCD, PLY, NPY ([N, C] or structured), LAS, LAZ, E57, Feather and Parquet;
--fields describes any other layout.

A folder means the scans in it and below it. Several are in flight at once. Failures are listed at the end and make the
exit code 1.
The C++ client, voxserve-client, also draws pictures and previews, measures, and has the operators' commands.
"""
_INFER_EXAMPLES = """\
examples:
  python -m voxserve infer --model minkunet scan.bin
  python -m voxserve infer --model minkunet scan.bin --save labels.npy
  python -m voxserve infer --model minkunet drive/ --save labels/
  python -m voxserve infer --model centerpoint scan.bin --save boxes.json
  python -m voxserve infer --model minkunet scan.bin --truth scan.truth.u8      # how many agree
  python -m voxserve infer --model minkunet waymo.bin \\
      --fields x:f32,y:f32,z:f32,intensity:f32,-:f32                          # five floats a point
  python -m voxserve infer --model minkunet ouster.pcd --fields intensity=reflectivity
  python -m voxserve infer --model minkunet scans/ --json | jq .round_trip_ms
"""
_BATCH = """\
Like infer, for folders that take long. It skips scans that have a result already, so the same command continues an
interrupted one. It retries scans while no server answers or its queue is full. With --shard several machines share a
folder. A file in the folder of results has the model's version and the settings, and the command refuses to add results
of other ones. `python -m voxserve.batch` is the same command.
"""
_BATCH_EXAMPLES = """\
examples:
  python -m voxserve.batch --model minkunet drives/ --save labels/
  python -m voxserve.batch --model minkunet drives/ --save labels/ --shard 3/8
"""
_MODELS = """\
Without a name: every version of every model with its state, and all problems of a failed one. With a name: its classes
and colours, its outputs, the fields that it reads of a point, and its limits.
"""
_HEALTH = """\
Asks the server by the gRPC health checking protocol, and exits with 0 if it is ready, with 1 if it is not or does not
answer.
"""
_OVERVIEW_EXAMPLES = """\
try:
  python -m voxserve serve deploy/models
  python -m voxserve health
  python -m voxserve models
  python -m voxserve infer --model minkunet scan.bin --save labels.npy

exit codes: 0 done, 1 something failed (or the server is not ready), 2 wrong usage
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command and returns the exit status."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    if words[:1] == ["help"]:
        words = [*words[1:2], "--help"]
    program = "voxserve" if Path(sys.argv[0]).name == "voxserve" else _MODULE
    parser = _parser(program)
    if not words:
        parser.print_help(sys.stderr)
        return 2
    try:
        if words[0] == "serve":
            return serve.run(words[1:])
        if words[0].startswith("--") and words[0] not in ("--help", "--version"):
            serve.become(words)  # the command line of the server's program, which has the same name
    except (OSError, ValueError) as error:
        print(f"voxserve serve: {printable(str(error))}", file=sys.stderr)
        return 1
    options = parser.parse_args(words)
    try:
        with told_on_stderr("voxserve", BY_FIELDS):
            status: int = options.run(options)
        sys.stdout.flush()
    except UsageError as error:
        text = printable(str(error))
        print(f"voxserve {options.command}: {text}; see {program} {options.command} --help", file=sys.stderr)
        return 2
    except BrokenPipeError:  # the program that reads the output, such as `head`, has ended
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except (errors.InferenceError, OSError, ValueError) as error:
        print(f"voxserve: {infer.advise(error)}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return status


def run_health(options: argparse.Namespace) -> int:
    """Runs the command health. Returns the exit status: 0 if the server serves at once or within --wait, else 1."""
    end = time.monotonic() + (options.wait or 0)
    with connect(options) as client:
        while True:
            try:
                serving = client.health()
            except errors.InferenceError:
                if time.monotonic() >= end:
                    raise
                serving = False
            if serving or time.monotonic() >= end:
                print("serving" if serving else "not serving")
                return 0 if serving else 1
            time.sleep(_POLL_SECONDS)


def _parser(program: str) -> argparse.ArgumentParser:
    style = argparse.RawDescriptionHelpFormatter

    def named(text: str) -> str:  # as it was called
        return text.replace(_MODULE + " ", program + " ")

    parser = FlagParser(
        prog=program,
        description="Labels LiDAR scans, or finds boxes in them, with a voxserve server.",
        epilog=named(_OVERVIEW_EXAMPLES),
        formatter_class=style,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"voxserve {voxserve.__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)

    def command(name: str, summary: str, description: str, epilog: str = "") -> argparse.ArgumentParser:
        return commands.add_parser(
            name,
            help=summary,
            description=named(description),
            epilog=named(epilog),
            formatter_class=style,
            allow_abbrev=False,
        )

    command("serve", "runs the server on models of this machine", _SERVING)  # serve.run() reads its arguments

    inferring = command("infer", "labels scans or finds boxes in them, as the model does", _INFER, _INFER_EXAMPLES)
    _add_infer(inferring)
    arguments.add_connection(inferring, 30)
    inferring.set_defaults(run=infer.run)

    batching = command("batch", "infer for long folders: in shards, resumable", _BATCH, _BATCH_EXAMPLES)
    _add_request(batching)
    batching.add_argument("--save", required=True, metavar="FOLDER", help="writes one file per scan into this folder")
    batching.add_argument(
        "--shard",
        type=batch.parse_shard,
        default=(1, 1),
        metavar="I/N",
        help="sends only the I-th of N parts of the scans, chosen by their file names (default 1/1)",
    )
    batching.add_argument(
        "--retry",
        type=arguments.duration,
        default=300.0,
        metavar="TIME",
        help="a scan is retried for this time while no server answers or its queue is full (default 5m)",
    )
    batching.add_argument(
        "--manifest",
        default="",
        metavar="FILE",
        help="writes a row for each scan that is done now, with its result or its error: .jsonl, or .parquet",
    )
    arguments.add_connection(batching, 30)
    batching.set_defaults(run=batch.run, truth="")

    listing = command("models", "lists the server's models, or describes one", _MODELS)
    listing.add_argument("name", nargs="?", default="", metavar="NAME", help="the model to describe")
    listing.add_argument(
        "--version", type=arguments.count(1), default=0, metavar="N", help="the version of NAME (default: the newest)"
    )
    arguments.add_connection(listing, 30)
    listing.set_defaults(run=models.run)

    health = command("health", "tells whether the server is ready", _HEALTH)
    health.add_argument(
        "--wait",
        type=arguments.duration,
        metavar="TIME",
        help="asks again for up to this time, until the server is ready",
    )
    arguments.add_connection(health, 5)
    health.set_defaults(run=run_health)
    return parser


def _add_infer(parser: argparse.ArgumentParser) -> None:
    _add_request(parser)
    add = parser.add_argument
    add(
        "--save",
        default="",
        metavar="FILE|FOLDER",
        help="writes the labels: .npy (uint8 or uint16 [N]) or .label (uint32, as SemanticKITTI); or the boxes: .json, "
        ".csv or .npy (structured: class_id, score, x, y, z, length, width, height, yaw, velocity_x, velocity_y); of a "
        "model with both, .npy has the labels; a folder gets one .npy per scan",
    )
    add(
        "--truth",
        default="",
        metavar="FILE|FOLDER",
        help="compares the labels with labels made by people: one byte for each point (255 = none), .label or .npy; a "
        "folder has SCAN.truth.u8, SCAN.u8, SCAN.label or SCAN.npy",
    )


def _add_request(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments that infer and batch share: the scans and the options of their requests."""
    add = parser.add_argument
    add("scans", nargs="+", metavar="SCAN|FOLDER", help="the scans")
    add("--model", required=True, metavar="NAME", help="the model to use; the command models lists them")
    add(
        "--version",
        type=arguments.count(1),
        default=0,
        metavar="N",
        help="the model's version (default: the newest that is ready)",
    )
    arguments.add_fields(
        parser,
        "the layout of the points, if the extension does not tell: NAME:TYPE[*SCALE][+SHIFT] for each value in order, "
        "with types i8 u8 i16 u16 i32 u32 f16 f32 f64; the name - skips a value. In PCD, PLY and structured NPY files, "
        "which name their fields, an entry sets the scale and shift of its field",
    )
    add(
        "--compact",
        action="store_true",
        help="sends coordinates and intensities in 16 bits: half the bytes, and points within half a step (1 mm or the "
        "extent by 65534) of where they are",
    )
    add(
        "--outputs",
        type=lambda text: tuple(filter(None, text.split(","))),
        default=(),
        metavar="NAME,...",
        help="asks for these tensors of the model in place of labels and boxes (default: all tensors of a model that "
        "has neither); --save writes an .npz with an array for each, and for a tensor of sites NAME.coordinates and "
        "NAME.unit too",
    )
    add("--tensor_type", choices=("float32", "float16"), default="float32", help="the tensors' type (default float32)")
    add(
        "--sample",
        type=arguments.count(1, (1 << 32) - 1),
        default=0,
        metavar="N",
        help="the server also selects the N farthest points of each scan: every next point is the farthest from those "
        "before it; --json prints their indices",
    )
    add(
        "--sample_start",
        type=arguments.count(0, (1 << 32) - 1),
        default=0,
        metavar="INDEX",
        help="the selection of --sample starts with this point (default 0)",
    )
    add(
        "--sample_use",
        choices=("return", "network"),
        default="return",
        help="with return (default) the answer lists the points of --sample; with network the network sees only these "
        "points, and the others get no label",
    )
    add(
        "--format",
        default="",
        metavar="EXT",
        help="the format of files in a folder --save: npy (default) or label for labels; npy, json or csv for "
        "boxes; of a model with both, npy has the labels",
    )
    add("--json", action="store_true", help="prints one line of JSON per scan instead of tables")
    add(
        "--concurrency",
        type=arguments.count(1, 256),
        default=4,
        metavar="N",
        help="up to N scans are in flight at once (default 4)",
    )
