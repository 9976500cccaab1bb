"""Command line: python -m voxserve.verify --help."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from voxserve.cli.flag_parser import FlagParser
from voxserve.errors import InferenceError
from voxserve.numbers import real
from voxserve.printable import printable_lines
from voxserve.verify import reference, served
from voxserve.verify.compare import Comparison, Model


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command. Returns the exit status: 0 if all results are within the tolerance; 1 if one is not, if there
    is nothing to compare, or if a file cannot be read. A wrong command line ends the program with status 2.
    """
    options = _parser().parse_args(arguments)
    try:
        model, recorded = Model.read(options.model), reference.read(options.reference)
        is_equal = _compare(model, recorded, options.tolerance)
        if options.address:
            name = options.name or options.model.rstrip("/").rpartition("/")[2]
            for key, deviation in served.deviations(model, recorded, options.address, name).items():
                print(f"served {key}: {deviation}")
                is_equal = is_equal and deviation.is_within(options.tolerance)
    except (OSError, ValueError, InferenceError) as error:
        print(f"verify: {printable_lines(str(error))}", file=sys.stderr)
        return 1
    print("equal" if is_equal else "NOT equal", f"within {options.tolerance:g} of the largest magnitude")
    return 0 if is_equal else 1


def _compare(model: Model, recorded: reference.Reference, tolerance: float) -> bool:
    comparison = Comparison(model, recorded)
    outputs = comparison.outputs()
    for name, deviation in outputs.items():
        print(f"{name} (node '{deviation.node}'): {deviation}")
    if comparison.not_served:
        print(f"not compared, since the model does not serve them: {', '.join(comparison.not_served)}")
    is_equal = bool(outputs) and all(d.is_within(tolerance) for d in outputs.values())
    modules = comparison.modules()
    first = next(((name, d) for name, d in modules if not d.is_within(tolerance)), None)
    if first is not None:
        print(f"first node that deviates: '{first[1].node}' (module {first[0]}): {first[1]}")
    elif modules:
        print(f"{len(modules)} intermediate results do not deviate")
    elif not is_equal:
        print("the reference holds no intermediate results of known nodes: record them to see where it begins")
    return is_equal and first is None


def _parser() -> argparse.ArgumentParser:
    parser = FlagParser(
        prog="python -m voxserve.verify",
        description="Compares an exported model with a reference that voxserve.record wrote. It computes the nodes "
        "in float64; with --address it also compares the server's tensors or scores.",
    )
    parser.add_argument("model", help="the model's folder")
    parser.add_argument("reference", help="the .npz file of the reference")
    parser.add_argument(
        "--tolerance",
        type=real,
        default=1e-4,
        help="the largest error, relative to a result's largest value (default 1e-4)",
    )
    parser.add_argument("--address", help="the address of a running server that serves the folder")
    parser.add_argument("--name", help="the name of the served model (default: the folder's name)")
    return parser


if __name__ == "__main__":
    sys.exit(main())
