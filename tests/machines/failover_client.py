"""The Python client under faults, for test_faults.py; failover_client.cc is the same in C++.

    python failover_client.py ADDRESS MODEL SCAN RATE [KEEPALIVE_SECONDS]

One caller and four streams (two of policy "queue", two of "latest") each send RATE requests a second, with parts of the
scan that differ in length. It prints "ready" when it knows the right labels, stops when standard input ends, waits for
every answer, and prints what became of the calls and frames in JSON.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections import Counter
from typing import Any

import numpy as np

import voxserve

PARTS = 4
POINTS_OF_PART = 200  # points of the first part; each next part has as many more
REOPEN = 60.0
CHANNELS = 3
STREAMS_OF_POLICY = 2


class Tally:
    """Counts the results of the calls, or of the frames of one stream."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._results: Counter[int] = Counter()
        self._errors: Counter[str] = Counter()
        self._right = self._wrong = 0
        self._longest = self._gap = 0.0
        self._last: float | None = None
        self.reopened = 0

    def add_sent(self, number: int) -> None:
        with self._lock:
            self._results[number] = 0

    def add_result(self, number: int, labels: Any, right: Any, seconds: float) -> None:
        now = time.monotonic()
        with self._lock:
            self._results[number] += 1
            self._wrong += not np.array_equal(labels, right)
            self._right += 1
            self._longest = max(self._longest, seconds)
            if self._last is not None:
                self._gap = max(self._gap, now - self._last)
            self._last = now

    def add_error(self, number: int, error: voxserve.InferenceError) -> None:
        with self._lock:
            self._results[number] += 1
            self._errors[error.reason or error.code.name] += 1
        if not isinstance(error, voxserve.SupersededError):
            print(f"frame or call {number}: {error}", file=sys.stderr)

    def summary(self) -> dict[str, Any]:
        return {
            "sent": len(self._results),
            "answered": self._right,
            "wrong": self._wrong,
            "errors": dict(self._errors),
            "refused": 0,
            "lost": sum(count == 0 for count in self._results.values()),
            "twice": sum(count > 1 for count in self._results.values()),
            "reopened": self.reopened,
            "longest_s": self._longest,
            "gap_s": self._gap,
        }


class Load:
    def __init__(self, address: str, model: str, scan: str, rate: float, keepalive: float) -> None:
        self.client = voxserve.Client(address, channels=CHANNELS, keepalive=keepalive)
        self.model, self.pause = model, 1 / rate
        points = np.fromfile(scan, np.float32).reshape(-1, 4)
        self.parts = [points[: POINTS_OF_PART * (part + 1)] for part in range(PARTS)]
        self.right = [self.client.segment(model, part) for part in self.parts]
        self.stops = threading.Event()

    def call(self, tally: Tally) -> None:
        number = 0
        while not self.stops.is_set():
            tally.add_sent(number)
            start = time.monotonic()
            try:
                labels = self.client.segment(self.model, self.parts[number % PARTS])
                tally.add_result(number, labels, self.right[number % PARTS], time.monotonic() - start)
            except voxserve.InferenceError as error:
                tally.add_error(number, error)
            number += 1
            time.sleep(self.pause)

    def drive(self, policy: Any, tally: Tally) -> None:
        with self.client.stream(self.model, policy=policy, reopen=REOPEN) as stream:
            sender = threading.Thread(target=self._send, args=(stream, tally))
            sender.start()
            try:
                for result in stream:
                    if result.error is not None:
                        tally.add_error(result.frame_id, result.error)
                    else:
                        assert result.segmentation is not None
                        right = self.right[result.frame_id % PARTS]
                        labels, seconds = result.segmentation.labels, result.segmentation.round_trip
                        tally.add_result(result.frame_id, labels, right, seconds)
            except voxserve.InferenceError as error:
                print(f"a stream ended with {error}", file=sys.stderr)
            self.stops.wait()
            sender.join()
            tally.reopened = stream.num_reopened

    def _send(self, stream: voxserve.Stream, tally: Tally) -> None:
        number = 0
        while not self.stops.is_set():
            tally.add_sent(number)
            stream.send(number, self.parts[number % PARTS])
            number += 1
            time.sleep(self.pause)
        stream.close_sends()


def main(arguments: list[str]) -> None:
    address, model, scan, rate, *rest = arguments
    load = Load(address, model, scan, float(rate), float(rest[0]) if rest else 10.0)
    print("ready", flush=True)
    tallies = {"calls": Tally()}
    threads = [threading.Thread(target=load.call, args=(tallies["calls"],))]
    for policy in ("queue", "latest"):
        for number in range(STREAMS_OF_POLICY):
            tally = tallies[f"{policy} {number}"] = Tally()
            threads.append(threading.Thread(target=load.drive, args=(policy, tally)))
    for thread in threads:
        thread.start()
    sys.stdin.read()
    load.stops.set()
    for thread in threads:
        thread.join()
    print(json.dumps({name: tally.summary() for name, tally in tallies.items()}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
