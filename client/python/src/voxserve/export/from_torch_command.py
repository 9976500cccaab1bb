"""python -m voxserve.export from-torch FACTORY CHECKPOINT: exports a user's own module by tracing it."""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import sys
import warnings
from pathlib import Path
from typing import Any

from voxserve.export import checkpoint, checkpoint_file, stand_ins
from voxserve.export.arguments import add_folder, add_weights, names, point_features, voxel_size
from voxserve.export.class_lists import check_classes
from voxserve.export.input_files import read_classes
from voxserve.export.model_folder import config_textproto
from voxserve.export.networks.tensors import ExportError
from voxserve.export.tracing.from_torch import from_torch
from voxserve.export.tracing.input_points import Points
from voxserve.numbers import integer, real
from voxserve.printable import printable_lines
from voxserve.verify import machine

NAME = "from-torch"
_EXAMPLE = (
    "FACTORY must return (module, example), where example is an input of the module, such as a sparse tensor. It "
    "may return a second example of another size, with which the network is compared: (module, example, other)"
)


def add_parser(networks: Any) -> None:
    text = "a module of your own, of spconv.pytorch, torchsparse or MinkowskiEngine, with the library or without"
    command: argparse.ArgumentParser = networks.add_parser(NAME, help=text, description=text)
    command.add_argument("factory", help=f"file.py:function or package.module:function. {_EXAMPLE}")
    command.add_argument(
        "checkpoint", nargs="?", help="a .safetensors, .pt or .pth file (default: the module's own weights)"
    )
    add_folder(command)
    add_weights(command)
    command.add_argument(
        "--axes", default="", metavar="zyx|xyz", help="the order of the coordinates' axes; spconv needs it"
    )
    command.add_argument("--cut", default="", metavar="MODULE", help="ends the network after this module")
    command.add_argument("--result", default="", metavar="NAME", help="serves only this one of several results")
    command.add_argument(
        "--features_of", default="", metavar="KEY", help="the key of the features, if the example is a dict"
    )
    command.add_argument(
        "--stand_in",
        action="append",
        default=[],
        choices=stand_ins.LIBRARIES,
        help="computes with voxserve's stand-in although the library is installed (spconv: for biases on a CPU); "
        "may be given several times",
    )
    command.add_argument(
        "--reference", metavar="NPZ", help="writes the module's results to this file, for voxserve.verify"
    )
    points = command.add_argument_group("points", "how the server makes voxels; without these, clients send voxels")
    points.add_argument("--voxel_size", type=voxel_size, metavar="M[,M,M]", help="in metres, of every axis or of each")
    points.add_argument(
        "--features", type=point_features, metavar="NAME:UNIT[=DEFAULT],...", help="the columns of the input"
    )
    points.add_argument(
        "--rounding", choices=("FLOOR", "HALF_EVEN"), default="FLOOR", help="of coordinates to voxels (default FLOOR)"
    )
    points.add_argument(
        "--origin",
        choices=("MINIMUM", "RANGE", "ZERO"),
        help="the origin of the voxels (default: RANGE with --range, else ZERO)",
    )
    points.add_argument(
        "--reduce",
        choices=("FIRST", "MEAN"),
        default="FIRST",
        help="a voxel's features are its first point's or the mean (default FIRST)",
    )
    points.add_argument(
        "--range",
        type=_numbers,
        metavar="M,...",
        help="the range in metres: the lowest value of each axis, then the highest",
    )
    points.add_argument(
        "--max_points_per_voxel",
        type=integer,
        default=0,
        metavar="N",
        help="MEAN uses only the first N points of a voxel",
    )
    points.add_argument(
        "--point_axes", type=names, default=(), metavar="NAME,...", help="the names of the axes' fields (default x,y,z)"
    )


def run(options: argparse.Namespace) -> int:
    """Runs the command. Returns the exit status: 0 if the folder was written, 1 if the module or its weights cannot be
    exported.
    """
    try:
        folder, texts, num_tensors = _export(options)
    except (ExportError, OSError, ValueError, NotImplementedError) as error:
        print(f"export: {printable_lines(str(error))}", file=sys.stderr)
        return 1
    for text in texts:
        print(f"warning: {printable_lines(text)}", file=sys.stderr)
    print(f"wrote {folder}: {num_tensors} tensors")
    return 0


def _export(options: argparse.Namespace) -> tuple[Path, list[str], int]:
    state = checkpoint_file.read(options.checkpoint) if options.checkpoint else None
    classes, ignore_label = read_classes(options.classes) if options.classes else ((), None)
    texts = [
        f"{library} is {'replaced' if library in options.stand_in else 'not installed'}: a stand-in computes for it"
        for library in stand_ins.install(replace=options.stand_in)
    ]
    with machine.prepared() as notes:
        module, example, other = _made(options.factory)
    if state is None and (options.prefix or options.spconv_order):
        raise ValueError("--prefix and --spconv_order are of a checkpoint, and none is given")
    if state is None:
        checkpoint.check_finite(module)
    else:
        texts += checkpoint.load(module, state, prefix=options.prefix, order=options.spconv_order)
    module.eval()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # they are printed from exported.warnings
        exported = from_torch(
            module,
            example,
            axes=options.axes,
            points=_points(options),
            name=options.name or Path(options.output).name,
            description=options.description,
            cut=options.cut,
            output=options.result,
            features=options.features_of,
            other=other,
        )
    check_classes(classes, ignore_label, exported.num_classes, options.classes)
    if not exported.network.has_outputs:
        raise ExportError(
            [
                f"some of the results {', '.join(exported.outputs)} are no images and no rows of points, sites or "
                "samples: --result chooses one, --cut ends the network earlier"
            ]
        )
    if options.reference:
        from voxserve.verify.record import record

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the trace has given the same warnings
            record(module, example, options.reference)
    config = config_textproto(classes, ignore_label, options.notice)
    folder = exported.write(options.output, config=config, version=options.version, notice=options.notice)
    return folder, list(dict.fromkeys([*texts, *notes, *exported.warnings])), len(exported.network.tensors)


def _made(factory: str) -> tuple[Any, Any, Any]:
    """Returns the module, its example, and the second example or None."""
    where, _, name = factory.rpartition(":")
    if not where or not name:
        raise ValueError(f"'{factory}' is not file.py:function or package.module:function")
    try:
        source = _loaded(Path(where)) if where.endswith(".py") else importlib.import_module(where)
    except ImportError as error:
        raise ValueError(f"{where} cannot be imported: {error}") from None
    if not hasattr(source, name):
        raise ValueError(f"{where} has no '{name}'")
    made = getattr(source, name)()
    if not isinstance(made, tuple) or len(made) not in (2, 3) or not hasattr(made[0], "named_modules"):
        raise ValueError(f"{_EXAMPLE}; '{factory}' returned {type(made).__name__}")
    return made[0], made[1], made[2] if len(made) == 3 else None


def _loaded(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None or not path.exists():
        raise ValueError(f"{path} is no Python file")
    source = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = source
    sys.path.insert(0, str(path.resolve().parent))
    try:
        spec.loader.exec_module(source)
    finally:
        sys.path.remove(str(path.resolve().parent))
    return source


def _points(options: argparse.Namespace) -> Points | None:
    if options.voxel_size is None and options.features is None:
        return None
    if options.voxel_size is None or options.features is None:
        raise ValueError("--voxel_size and --features belong together")
    bounds = options.range or ()
    half = len(bounds) // 2
    return Points(
        options.voxel_size,
        options.features,
        rounding=options.rounding,
        origin=options.origin or ("RANGE" if bounds else "ZERO"),
        reduce=options.reduce,
        range_min=bounds[:half],
        range_max=bounds[half:],
        max_points_per_voxel=options.max_points_per_voxel,
        axes=options.point_axes,
    )


def _numbers(text: str) -> tuple[float, ...]:
    values = tuple(real(value) for value in text.split(","))
    if len(values) % 2:
        raise argparse.ArgumentTypeError(f"{len(values)} numbers, not two of each axis")
    return values
