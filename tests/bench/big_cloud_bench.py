#!/usr/bin/env python3
"""Sends many moved copies of a scan as one request, and compares the labels with those of each copy alone.

    PYTHONPATH=client/python/src build/venv/bin/python tests/bench/big_cloud_bench.py build/dev/server/voxserve \
        deploy/models/minkunet SCAN.bin --points 1 10 --limit 60

SCAN.bin: float32 x, y, z, intensity. --points and --limit are in millions; the server accepts --limit, so the model's
configuration must have no limits of its own. Copies lie 512 m apart in a square, and each alone has the same
coordinates as in the large cloud, so every label must be equal. Starts a server on --devices, and stops it. Prints
Markdown: the time from the call to the answer, the largest memory of the server so far, the memory of GPU 0 that is
used after it, and what it answers to one copy more than its limits allow.
"""

from __future__ import annotations

import argparse
import math
import re
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

import numpy as np
from started_server import started

import voxserve

APART_M = 512.0  # between copies; more than a scan's extent and what a network reads beyond it
MILLION = 1_000_000


def peak_gb(process: subprocess.Popen[str]) -> float:
    """Returns the largest resident memory of the process so far."""
    status = Path(f"/proc/{process.pid}/status").read_text()
    return int(re.search(r"VmHWM:\s+(\d+) kB", status)[1]) / 1e6  # type: ignore[index]


def gpu_memory_gib() -> str:
    """Returns the memory of GPU 0 that is used, by all processes; "" without nvidia-smi."""
    command = ["nvidia-smi", "--id=0", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
    try:
        return f"{int(subprocess.run(command, check=True, capture_output=True, text=True).stdout) / 1024:.1f}"
    except (FileNotFoundError, subprocess.CalledProcessError, ValueError):
        return ""


def copies_of(scan: np.ndarray, count: int) -> np.ndarray:
    """Returns [count, points, 4]: the scan, moved to the places of a square."""
    side = math.isqrt(count - 1) + 1
    places = np.array([(i // side, i % side) for i in range(count)], np.float32)
    copies = np.repeat(scan[None], count, axis=0)
    # Multiples of 2^-10 m are exact after the move. Otherwise rounding could move the place from which the copy's
    # coarser levels count.
    copies[:, :, :3] = np.rint(copies[:, :, :3] * 1024) / 1024
    copies[:, :, :2] += (places - np.float32(side // 2))[:, None] * np.float32(APART_M)
    return copies


def copy_with_limit(model: Path, folder: Path, limit: int) -> Path:
    """Copies a model to the folder, sets the limits of its points and voxels, and returns the copy. Exits if it has
    limits already, or a version has a configuration of its own, which would not get them.
    """
    config = model / "config.textproto"
    if own := next(model.glob("*/config.textproto"), None):
        raise SystemExit(f"{own}: a version with its own configuration would not get --limit; remove this file")
    for number, line in enumerate(config.read_text().splitlines(), 1):
        if found := re.search(r"\bmax_(points|voxels)\s*:", line.partition("#")[0]):
            raise SystemExit(f"{config}:{number}: the model has max_{found[1]} already; remove the line to use --limit")
    copied = folder / model.name
    shutil.copytree(model, copied)
    with (copied / config.name).open("a") as file:
        file.write(f"\nmax_points: {limit}\nmax_voxels: {limit}\n")
    return copied


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("server", help="the server's program")
    parser.add_argument("model", type=Path, help="a model folder")
    parser.add_argument("scan", type=Path)
    parser.add_argument("--points", type=float, nargs="+", default=[1, 10], metavar="MILLIONS")
    parser.add_argument("--limit", type=float, default=20, metavar="MILLIONS")
    parser.add_argument("--devices", default="cpu", help="as the server's --devices; default cpu")
    options = parser.parse_args()
    scan = np.fromfile(options.scan, np.float32).reshape(-1, 4)
    limit = int(options.limit * MILLION)
    message = min(2**31 - 1, limit * 16 + 2**20)
    with tempfile.TemporaryDirectory() as folder:
        copied = copy_with_limit(options.model.resolve(), Path(folder), limit)
        flags = [f"--devices={options.devices}", f"--max_message_bytes={message}", "--request_timeout=1h"]
        with (
            started(options.server, Path(folder), *flags) as (process, address),
            voxserve.Client(address, timeout=3600, max_message_bytes=2**31 - 1) as client,
        ):
            print("| copies | points | voxels | s | server, GB | GPU, GiB | labels unlike those of a copy alone |")
            print("|--:|--:|--:|--:|--:|--:|--:|", flush=True)
            for millions in options.points:
                copies = copies_of(scan, max(1, int(millions * MILLION) // len(scan)))
                begin = time.perf_counter()
                whole = client.infer(copied.name, copies.reshape(-1, 4))
                seconds = time.perf_counter() - begin
                memory, of_gpu = peak_gb(process), gpu_memory_gib() if options.devices != "cpu" else ""
                labels = whole.labels.reshape(len(copies), -1)
                alone = [client.infer(copied.name, copy).labels for copy in copies]
                differ = sum(int((a != b).sum()) for a, b in zip(labels, alone, strict=True))
                row = (
                    f"| {len(copies)} | {labels.size:,} | {whole.counts.voxels:,} | {seconds:.2f} | {memory:.1f} "
                    f"| {of_gpu} | {differ} |"
                )
                print(row, flush=True)
            beyond = copies_of(scan, limit // len(scan) + 1).reshape(-1, 4)
            try:
                client.infer(copied.name, beyond)
                print("\nnothing is refused")
            except voxserve.InferenceError as error:
                print(f"\n{len(beyond):,} points: {error}")


if __name__ == "__main__":
    main()
