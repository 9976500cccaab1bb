#!/usr/bin/env python3
"""Compares voxserve.Engine with a server on the same scan, in turns: the time of a request, and its time beside stages.

    export PYTHONPATH=build/dev/client/python/native
    build/venv/bin/python tests/bench/engine_bench.py build/dev/server/voxserve

"Beside stages" is what a request takes without the stages that its answer lists: in Python, in gRPC and on the way. The
first cloud is a scan far outside the model's range, whose network has nothing to do. Prints Markdown.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import numpy as np
from started_server import started

import voxserve

ROOT = Path(__file__).resolve().parents[2]


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("server", help="the server's program")
    parser.add_argument("--device", default="", help="the engine's device (the server takes its default)")
    parser.add_argument("--requests", type=int, default=60, help="requests of each kind (a seventh for the whole scan)")
    options = parser.parse_args()
    models = ROOT / "deploy" / "models"
    scan = np.fromfile(ROOT / "deploy" / "scans" / "pandaset_070.bin", np.float32).reshape(-1, 4)
    far = scan + np.float32([1e6, 1e6, 0, 0])
    with started(options.server, models) as (_, address):
        asked = {"engine": voxserve.Engine(models, options.device), "server": voxserve.Client(address, timeout=600)}
        print("| points | engine, ms | server, ms | engine beside stages | server beside stages |")
        print("|---|--:|--:|--:|--:|")
        for name, points, number in (
            (f"{len(far):,}, out of range", far, options.requests),
            (f"{len(scan[::108]):,}", scan[::108].copy(), options.requests),
            (f"{len(scan):,}", scan, max(3, options.requests // 7)),
        ):
            times: dict[str, list[tuple[float, float]]] = {"engine": [], "server": []}
            for turn in range(-2, number):  # the first two are warm-up
                for kind in sorted(asked, reverse=turn % 2 == 1):
                    begin = time.perf_counter()
                    result = asked[kind].infer("minkunet", points)
                    total = time.perf_counter() - begin
                    if turn >= 0:
                        times[kind].append((total, total - sum(stage.seconds for stage in result.stages)))
            medians = {kind: np.median(np.array(rows), axis=0) * 1e3 for kind, rows in times.items()}
            (engine, beside), (server, beside_of_server) = medians["engine"], medians["server"]
            print(f"| {name} | {engine:.2f} | {server:.2f} | {beside:.2f} | {beside_of_server:.2f} |", flush=True)


if __name__ == "__main__":
    main()
