"""Opens streams one after the other, and keeps them open until standard input ends, for test_proxied_clients.py.

    python stream_opener.py ADDRESS MODEL SCAN NUMBER

It prints a JSON list with the outcome of each stream: "OK" after the answer to its first frame, or the reason of its
end.
"""

from __future__ import annotations

import json
import sys
from contextlib import ExitStack

import numpy as np

import voxserve


def main(address: str, model: str, scan: str, number: str) -> None:
    points = np.fromfile(scan, np.float32).reshape(-1, 4)[:200]
    outcomes = []
    with ExitStack() as stack:
        client = stack.enter_context(voxserve.Client(address))
        for _ in range(int(number)):
            stream = stack.enter_context(client.stream(model, timeout=60))
            try:
                stream.send(0, points)
                outcomes.append("OK" if next(stream).error is None else "an error of the frame")
            except voxserve.InferenceError as error:
                outcomes.append(error.reason or error.code.name)
        print(json.dumps(outcomes), flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    main(*sys.argv[1:])
