#!/usr/bin/env python3
"""Prints MinkUNet 1.0x layer by layer: its times, rates and, with ncu, the bytes that each layer moves, beside the
least time that it could take.

    layer_profile.py BUILD/tests/bench/dataflow_cuda_bench [--ncu PATH | --no_ncu] [--logs FOLDER]

Runs `dataflow_cuda_bench layers 1.0` for the times, then `dataflow_cuda_bench profile 1.0` under Nsight Compute for the
bytes, and prints one table in Markdown. The ceiling of a layer is the longest of three times: its issued products at
the rate of the tensor cores, its bytes from the second-level cache, and its bytes from memory. --tflops, --l2_tbs and
--memory_tbs set those rates; the defaults were measured on an H200. ncu leaves caches and clocks as they are while it
replays a kernel. Exits with 1 if a program fails. Without ncu the table has no bytes, and says so.
"""

from __future__ import annotations

import argparse
import csv
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

TIME, L2_BYTES, MEMORY_BYTES = "gpu__time_duration.sum", "lts__t_bytes.sum", "dram__bytes.sum"
# READ_BYTES counts the bytes that SMs read from the L2 cache, without the traffic inside it. TENSOR_SHARE is the
# percentage of time in which tensor cores work.
READ_BYTES = "l1tex__m_xbar2l1tex_read_bytes.sum"
TENSOR_SHARE = "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_elapsed"
NEEDED, OPTIONAL = (TIME, L2_BYTES, MEMORY_BYTES), (READ_BYTES, TENSOR_SHARE)

# The time of each layer on semantickitti-00/000000, in microseconds, that we estimated for a Hopper kernel before we
# wrote the kernel. It is 2.5 us for the start plus the longer of two times: the time of the layer's arithmetic at 780
# TFLOP/s, and the time to read its bytes from the L2 cache at 5.5 TB/s.
ESTIMATED_US = {
    "stem.0": 6.5, "stem.1": 8.5,
    "stage1.down": 6.2, "stage1.0.conv1": 8.5,
    "stage2.down": 6.2, "stage2.0.conv1": 7.5, "stage2.0.conv2": 10.5,
    "stage3.down": 6.2, "stage3.0.conv1": 9.5, "stage3.0.conv2": 12.5,
    "stage4.down": 6.2, "stage4.0.conv1": 11.5, "stage4.0.conv2": 19.5,
    "up1.up": 9.5, "up1.0.conv1": 58.5, "up1.0.conv2": 39.5,
    "up2.up": 9.5, "up2.0.conv1": 29.5, "up2.0.conv2": 21.5,
    "up3.up": 9.5, "up3.0.conv1": 26.5, "up3.0.conv2": 22.5,
    "up4.up": 9.5, "up4.0.conv1": 26.5, "up4.0.conv2": 22.5,
}  # fmt: skip


def read_table(text: str, column: str) -> list[dict[str, str]]:
    """Returns the rows of the last Markdown table that has the column. A row maps names of columns to cells."""
    rows: list[dict[str, str]] = []
    names: list[str] | None = None
    for line in text.splitlines():
        if not line.startswith("|"):
            names = None
            continue
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if names is None:
            names = cells
            if column in names:
                rows = []
        elif column in names and not set(line) <= set("|-:"):
            rows.append(dict(zip(names, cells, strict=True)))
    return rows


def read_profile(text: str) -> dict[str, dict[str, float]]:
    """Returns the metrics of each layer, summed over its kernels. `text` is ncu's raw page as CSV, with NVTX ranges."""
    lines = text.splitlines()
    begin = next((i for i, line in enumerate(lines) if line.startswith('"ID"')), None)
    if begin is None:
        return {}
    layers: dict[str, dict[str, float]] = {}
    for row in csv.DictReader(line for line in lines[begin:] if not line.startswith("==")):
        cells = [value for value in row.values() if isinstance(value, str)]
        found = next((match for cell in cells if (match := re.search(r"layer=([\w.]+)", cell))), None)
        if found is None:
            continue  # the row of units
        layer = layers.setdefault(found[1], {})
        for metric in (*NEEDED, *OPTIONAL):
            value = (row.get(metric) or "").replace(",", "")
            if not re.fullmatch(r"[\d.]+(e[+-]?\d+)?", value):
                continue
            before = layer.get(metric, 0.0)
            # Percentages cannot be added, so the layer gets the percentage of its busiest kernel.
            layer[metric] = max(before, float(value)) if metric == TENSOR_SHARE else before + float(value)
    return layers


def ceiling_us(gflop: float, l2_bytes: float, memory_bytes: float, options: argparse.Namespace) -> tuple[float, str]:
    """Returns the least time that a layer can take, and the name of the resource that limits it."""
    return max(
        (gflop / options.tflops * 1e3, "products"),
        (l2_bytes / options.l2_tbs * 1e-6, "L2"),
        (memory_bytes / options.memory_tbs * 1e-6, "memory"),
    )


def joined(rows: Sequence[Mapping[str, str]], profile: Mapping[str, Mapping[str, float]],
           options: argparse.Namespace) -> list[str]:
    """Returns the lines of a Markdown table with a row for each layer: `rows`, and what `profile` has of the layer."""
    lines = [
        "| first of | times | in | out | us | best block us | useful TFLOP/s | issued TFLOP/s | L2 MB |"
        " read by SMs MB | memory MB | tensor cores work % | ncu us | ceiling us | share of the ceiling | bound by |"
        " estimate us | ratio |",
        "|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|---|--:|--:|",
    ]
    sums = {"us": 0.0, "best": 0.0, "ceiling": 0.0, "estimate": 0.0, "useful": 0.0, "issued": 0.0}
    for row in rows:
        name, times, us = row["first of"], int(row["times"]), float(row["us"])
        metrics = profile.get(name, {})
        useful, issued = float(row["useful GFLOP"]), float(row["issued GFLOP"])
        # SMs do not wait for traffic inside the L2 cache. READ_BYTES leaves it out, but not every profile has that
        # metric.
        read = metrics.get(READ_BYTES, metrics.get(L2_BYTES, 0.0))
        ceiling, bound = ceiling_us(issued, read, metrics.get(MEMORY_BYTES, 0.0), options)
        estimate = ESTIMATED_US.get(name)
        shown = [f"{metrics[m] * factor:.{digits}f}" if m in metrics else "" for m, factor, digits in (
            (L2_BYTES, 1e-6, 1), (READ_BYTES, 1e-6, 1), (MEMORY_BYTES, 1e-6, 1), (TENSOR_SHARE, 1, 0), (TIME, 1e-3, 1))]
        lines.append(
            f"| {name} | {times} | {row['in']} | {row['out']} | {us:.1f} | {row['best block us']} |"
            f" {row['useful TFLOP/s']} | {row['issued TFLOP/s']} | {' | '.join(shown)} | {ceiling:.1f} |"
            f" {ceiling / us:.2f} | {bound} |"
            + (f" {estimate:.1f} | {us / estimate:.1f} |" if estimate else " | |")
        )
        for key, value in (("us", us), ("best", float(row["best block us"])), ("ceiling", ceiling),
                           ("estimate", estimate or 0.0), ("useful", useful), ("issued", issued)):
            sums[key] += times * value
    if rows:
        lines.append(
            f"| **sum** | {sum(int(row['times']) for row in rows)} | | | {sums['us']:.0f} | {sums['best']:.0f} |"
            f" {sums['useful'] / sums['us'] * 1e3:.0f} | {sums['issued'] / sums['us'] * 1e3:.0f} | | | | | |"
            f" {sums['ceiling']:.0f} | {sums['ceiling'] / sums['us']:.2f} | |"
            + (f" {sums['estimate']:.0f} | {sums['us'] / sums['estimate']:.1f} |" if sums["estimate"] else " | |")
        )
    return lines


def run(command: Sequence[str], log: Path | None) -> str:
    """Returns the text that the command prints. Raises CalledProcessError if it fails."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if log is not None:
        log.parent.mkdir(parents=True, exist_ok=True)
        log.write_text(done.stdout + done.stderr, encoding="utf-8")
    done.check_returncode()
    return done.stdout


def profiled(ncu: str, bench: str, logs: Path | None) -> dict[str, dict[str, float]]:
    """Asks ncu for all metrics. If ncu gives none, asks for only those that every GPU has. Returns {} if ncu gives none
    again; stderr says why.
    """
    for metrics in ((*NEEDED, *OPTIONAL), NEEDED):
        command = [ncu, "--csv", "--page", "raw", "--print-units", "base", "--nvtx", "--profile-from-start", "off",
                   "--clock-control", "none", "--cache-control", "none", "--metrics", ",".join(metrics),
                   bench, "profile", "1.0"]
        try:
            layers = read_profile(run(command, logs / f"ncu-{len(metrics)}-metrics.csv" if logs else None))
        except (OSError, subprocess.CalledProcessError) as error:
            print(f"ncu: {error}", file=sys.stderr)
            continue
        if layers:
            return layers
    return {}


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the programs, prints the table and returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bench", help="dataflow_cuda_bench")
    parser.add_argument("--ncu", default=shutil.which("ncu") or "/usr/local/cuda/bin/ncu")
    parser.add_argument("--no_ncu", action="store_true", help="times and rates alone")
    parser.add_argument("--logs", type=Path, help="folder for what the programs print")
    parser.add_argument("--tflops", type=float, default=780)
    parser.add_argument("--l2_tbs", type=float, default=7.0)
    parser.add_argument("--memory_tbs", type=float, default=4.2)
    options = parser.parse_args(arguments)
    try:
        text = run([options.bench, "layers", "1.0"], options.logs / "layers.md" if options.logs else None)
    except (OSError, subprocess.CalledProcessError) as error:
        print(f"{options.bench}: {error}", file=sys.stderr)
        return 1
    rows = read_table(text, "issued GFLOP")
    if not rows:
        print(text.strip() or f"{options.bench} printed no table", file=sys.stderr)
        return 1
    profile = {} if options.no_ncu else profiled(options.ncu, options.bench, options.logs)
    print(text.splitlines()[0], end="\n\n")
    if not profile:
        print("**No bytes: ncu gave none. The ceiling is that of products alone.**\n")
    print("\n".join(joined(rows, profile, options)))
    print("\nissued: with the zeros of tiles of 64 rows. share of the ceiling: ceiling us over us. L2: all traffic of"
          " the second-level cache, between its halves too.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
