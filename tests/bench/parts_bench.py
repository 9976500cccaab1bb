#!/usr/bin/env python3
"""Measures the age of an answer when its scan has ended: frames sent whole and frames sent in parts, in turns.

    PYTHONPATH=client/python/src build/venv/bin/python tests/bench/parts_bench.py localhost:8500

A sensor takes a scan in 100 ms. A whole frame is sent when the scan has ended, a part when it is there. The age counts
from the end of the scan to its result, in the client. The first scan lies far outside the model's range, so that its
network has nothing to do: what is left is the way of the points. --uplinks lists links in Mbit/s, which a proxy in a
process of its own emulates (0: loopback without the proxy). Prints Markdown.
"""

from __future__ import annotations

import argparse
import multiprocessing
import socket
import threading
import time
from pathlib import Path

import numpy as np

import voxserve

ROOT = Path(__file__).resolve().parents[2]
PERIOD = 0.1  # seconds that the sensor takes for a scan
CHUNK = 8192  # bytes that the proxy sends at once


def carry(source: socket.socket, target: socket.socket, bytes_per_second: float) -> None:
    """Copies bytes until the source ends; no faster than the rate, if it is not 0."""
    due = time.monotonic()
    try:
        while data := source.recv(CHUNK):
            if bytes_per_second:
                due = max(due, time.monotonic() - 0.001) + len(data) / bytes_per_second
                time.sleep(max(0.0, due - time.monotonic()))
            target.sendall(data)
        target.shutdown(socket.SHUT_WR)
    except OSError:
        pass


def proxy(listener: socket.socket, server: tuple[str, int], bytes_per_second: float) -> None:
    """Serves connections to the server, with an uplink of this rate."""
    while True:
        client, _ = listener.accept()
        upstream = socket.create_connection(server)
        for end in (client, upstream):
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for arguments in ((client, upstream, bytes_per_second), (upstream, client, 0.0)):
            threading.Thread(target=carry, args=arguments, daemon=True).start()


def start_proxy(address: str, megabits: float) -> str:
    """Returns the address of the server behind an uplink of this rate."""
    host, port = address.rsplit(":", 1)
    listener = socket.create_server(("127.0.0.1", 0))
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 * CHUNK)
    arguments = (listener, (host, int(port)), megabits * 1e6 / 8)
    multiprocessing.Process(target=proxy, args=arguments, daemon=True).start()
    return f"127.0.0.1:{listener.getsockname()[1]}"


def sleep_until(when: float) -> None:
    time.sleep(max(0.0, when - time.monotonic()))


def age(stream: voxserve.Stream, frame_id: int, points: np.ndarray, num_parts: int) -> tuple[float, float]:
    """Sends a scan as the sensor takes it. Returns, in seconds, the age of its answer and the server's stages."""
    begin = time.monotonic()
    if num_parts == 1:
        sleep_until(begin + PERIOD)
        stream.send(frame_id, points)
    else:
        for i, part in enumerate(np.array_split(points, num_parts)):
            sleep_until(begin + PERIOD * (i + 1) / num_parts)
            stream.send_part(frame_id, part, is_last=i + 1 == num_parts)
    result = next(stream)
    answered = time.monotonic()
    if result.error is not None:
        raise result.error
    stages = result.segmentation.stages
    return answered - begin - PERIOD, sum(stage.seconds for stage in stages)


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("address", help="HOST:PORT of the server")
    parser.add_argument("--model", default="minkunet")
    parser.add_argument("--parts", type=int, default=10)
    parser.add_argument("--uplinks", default="0,1000,200", help="Mbit/s, with commas between them; 0: no limit")
    parser.add_argument("--frames", type=int, default=60, help="frames of each form, of the scan out of range")
    parser.add_argument("--real_frames", type=int, default=10, help="frames of each form, of the scan itself")
    options = parser.parse_args()
    scan = np.fromfile(ROOT / "deploy" / "scans" / "pandaset_070.bin", np.float32).reshape(-1, 4)
    far = scan + np.float32([1e6, 1e6, 0, 0])
    print(f"{len(scan):,} points, {scan.nbytes / 1e6:.3f} MB, {options.parts} parts")
    print("| scan | uplink | frames | sent | age p50, ms | p90 | least | of it the server's stages, p50 |")
    print("|---|---|--:|---|--:|--:|--:|--:|")
    for name, points, number in (("out of range", far, options.frames), ("itself", scan, options.real_frames)):
        for uplink in options.uplinks.split(","):
            address = start_proxy(options.address, float(uplink)) if float(uplink) else options.address
            ages: dict[int, list[tuple[float, float]]] = {1: [], options.parts: []}
            with voxserve.Client(address, timeout=600) as client, client.stream(options.model, timeout=3600) as stream:
                for frame_id in range(2 * (number + 2)):
                    num_parts = 1 if frame_id % 2 == 0 else options.parts
                    found = age(stream, frame_id, points, num_parts)
                    if frame_id >= 4:  # after the first two of each
                        ages[num_parts].append(found)
            for num_parts, found_ages in ages.items():
                of_all, of_stages = 1e3 * np.array(found_ages).T
                form = "whole" if num_parts == 1 else f"in {num_parts} parts"
                link = f"{uplink} Mbit/s" if float(uplink) else "loopback"
                p50, p90 = np.percentile(of_all, [50, 90])
                print(
                    f"| {name} | {link} | {len(found_ages)} | {form} | {p50:.1f} | {p90:.1f} | {of_all.min():.1f} "
                    f"| {np.median(of_stages):.1f} |"
                )


if __name__ == "__main__":
    main()
