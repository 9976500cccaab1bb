"""The command line that the detector's and the segmenter's training share, and the device's settings."""

from __future__ import annotations

import argparse
from pathlib import Path

import torch

from train.loop import Schedule


def parse(module: str, text: str, schedule: Schedule, *, batch: int, finds_boxes: bool = False) -> argparse.Namespace:
    """Returns the parsed command line. finds_boxes: whether there is a command "find" too."""
    parser = argparse.ArgumentParser(prog=f"python -m {module}", description=text)
    commands = parser.add_subparsers(dest="command", required=True)
    train = commands.add_parser("train", help="train a part of a run", description="train a part of a run")
    train.add_argument("--out", type=Path, required=True, help="folder for the part's files")
    train.add_argument("--resume", type=Path, help="folder of the part before")
    train.add_argument("--max_seconds", type=float, default=445, help="of this part, from its start (%(default)s)")
    train.add_argument(
        "--total_seconds", type=float, default=schedule.total_seconds, help="of training, in all parts (%(default)s)"
    )
    train.add_argument("--steps", type=int, default=0, help="of all parts; 0: as many as total_seconds allow")
    train.add_argument("--batch", type=int, default=batch, help="scenes a step (%(default)s)")
    train.add_argument("--seed", type=int, default=1)
    evaluate = commands.add_parser("evaluate", help="measure weights", description="measure weights on the test frames")
    evaluate.add_argument("--weights", type=Path, required=True, help="a part's weights.safetensors")
    evaluate.add_argument("--save", type=Path, help="JSON with all figures")
    for command in (train, evaluate):
        command.add_argument("--data", type=Path, required=True, help="the folder that train.frames wrote")
    if finds_boxes:
        find = commands.add_parser("find", help="find boxes", description="find boxes in a scan, to compare with")
        find.add_argument("--weights", type=Path, required=True, help="a part's weights.safetensors")
        find.add_argument("--scan", type=Path, required=True, help="float32 x, y, z, intensity (0..1) of each point")
        find.add_argument("--save", type=Path, required=True, help=".npz with boxes [N, 7], classes and scores")
    for command in commands.choices.values():
        command.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    return parser.parse_args()


def prepare_device(options: argparse.Namespace) -> torch.device:
    torch.manual_seed(options.seed)
    torch.backends.cuda.matmul.allow_tf32 = True
    torch.backends.cudnn.allow_tf32 = True
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
    torch.backends.cudnn.benchmark = True
    return torch.device(options.device)
