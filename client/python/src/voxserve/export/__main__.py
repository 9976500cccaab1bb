"""Command line of the exporters: python -m voxserve.export --help."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy.typing as npt

from voxserve.export import model_folder, safetensors_file, torchsparse_minkunet
from voxserve.export.model_folder import ClassEntry, PointFeature
from voxserve.export.torchsparse_minkunet import ExportError


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit status: 0 written, 1 the weights or the class file are not right, 2 the command line is not."""
    options = _parser().parse_args(arguments)
    try:
        state = read_state_dict(options.weights)
        classes, ignore_label = read_classes(options.classes) if options.classes else ((), None)
        network = torchsparse_minkunet.build(
            state,
            name=options.name or Path(options.output).name,
            description=options.description,
            voxel_size=(options.voxel_size,) * 3,
            features=options.features,
        )
        num_classes = network.tensors["classifier.bias"].shape[0]
        if classes and sorted(c.id for c in classes) != list(range(num_classes)):
            raise ExportError(
                [
                    f"{options.classes} has the class ids {[c.id for c in classes]}, "
                    f"the classifier has {num_classes} outputs"
                ]
            )
        config = model_folder.config_textproto(
            classes, ignore_label, options.notice, options.max_voxels, options.voxel_overflow
        )
        folder = model_folder.write(options.output, network, config, options.version, options.notice)
    except (ExportError, OSError, ValueError) as error:
        print(f"export: {error}", file=sys.stderr)
        return 1
    values = sum(t.size for t in network.tensors.values())
    print(f"wrote {folder}: {len(network.tensors)} tensors, {values:,} values, {num_classes} classes")
    return 0


def read_state_dict(path: str) -> dict[str, npt.NDArray[Any]]:
    """Tensors by name from .safetensors, or from a torch file where torch is installed."""
    if not path.endswith((".pt", ".pth", ".ckpt")):
        return safetensors_file.read(path)
    try:
        import torch
    except ImportError:
        raise ValueError(
            f"{path} is a torch file, which needs torch: pip install torch, or save the state dict as .safetensors"
        ) from None
    try:
        loaded: Any = torch.load(path, map_location="cpu", weights_only=True)
    except OSError:
        raise
    except Exception as error:  # of the zip file, of pickle, of what weights_only forbids
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise ValueError(f"{path} is not a torch file of tensors alone: {reason}") from None
    if not isinstance(loaded, dict):
        raise ValueError(f"{path} holds a {type(loaded).__name__}, not a state dict")
    for key in ("state_dict", "model"):
        loaded = loaded[key] if isinstance(loaded.get(key), dict) else loaded
    tensors = {str(name): value.detach() for name, value in loaded.items() if isinstance(value, torch.Tensor)}
    return {name: (t.float() if t.dtype == torch.bfloat16 else t).numpy() for name, t in tensors.items()}


def read_classes(path: str) -> tuple[tuple[ClassEntry, ...], int | None]:
    """Classes and ignore label of a JSON file {"classes": [{"id", "name", "color": [r, g, b]}], "ignore_label"}."""
    card = json.loads(Path(path).read_text(encoding="utf-8"))
    try:
        classes = tuple(ClassEntry(int(c["id"]), str(c["name"]), _rgb(c["color"])) for c in card["classes"])
    except (KeyError, TypeError, ValueError):
        raise ValueError(f"{path}: classes must be a list of {{id, name, color: [r, g, b]}}") from None
    ignore_label = card.get("ignore_label")
    return classes, None if ignore_label is None else int(ignore_label)


def _rgb(values: Sequence[int]) -> tuple[int, int, int]:
    red, green, blue = (int(v) for v in values)
    if not all(0 <= v <= 255 for v in (red, green, blue)):
        raise ValueError(values)
    return red, green, blue


def _features(text: str) -> tuple[PointFeature, ...]:
    features = []
    for entry in text.split(","):
        name, _, rest = entry.partition(":")
        unit, _, default = rest.partition("=")
        if not name or not unit:
            raise argparse.ArgumentTypeError(f"'{entry}' is not name:unit or name:unit=default")
        features.append(PointFeature(name, unit, float(default) if default else None))
    return tuple(features)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m voxserve.export", description="Write the folder that voxserve serves from a state dict."
    )
    networks = parser.add_subparsers(dest="network", required=True)
    unet = networks.add_parser(
        "torchsparse-minkunet", help="TorchSparse's SparseResUNet42 (backbone.*) with a Linear (classifier.*)"
    )
    unet.add_argument("weights", help="state dict: .safetensors, or .pt/.pth where torch is installed")
    unet.add_argument("--output", required=True, metavar="FOLDER", help="the model's folder; its name is the model's")
    unet.add_argument("--version", type=int, default=1, help="version to write (default 1)")
    unet.add_argument("--classes", metavar="JSON", help="{classes: [{id, name, color: [r, g, b]}], ignore_label}")
    unet.add_argument("--name", default="", help="the network's name, for people (default: the folder's)")
    unet.add_argument("--description", default="", help="what it was trained on, what it is good for")
    unet.add_argument("--notice", default="", help="comment at the head of the files: source, attribution")
    unet.add_argument("--voxel-size", type=float, default=0.05, metavar="M", help="metres (default 0.05)")
    unet.add_argument(
        "--features",
        type=_features,
        default=torchsparse_minkunet.LIDAR_FEATURES,
        metavar="NAME:UNIT[=DEFAULT],...",
        help="columns of the input (default x:m,y:m,z:m,intensity:1)",
    )
    unet.add_argument("--max-voxels", type=int, default=0, metavar="N", help="of a request (default 0: no limit)")
    unet.add_argument(
        "--voxel-overflow",
        choices=model_folder.VOXEL_OVERFLOWS,
        default="REJECT",
        help="above it: refuse, keep the nearest to the sensor, or the first in input order as spconv and OpenPCDet do",
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
