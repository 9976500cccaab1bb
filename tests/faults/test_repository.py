"""A model's folder changes while the server loads it: files are cut short, swapped, removed and put back at any moment.
The version in service stays and its answers stay right. A load that fails says what was wrong.
"""

from __future__ import annotations

import random
import shutil
import threading
import time
from collections import Counter
from pathlib import Path

from conftest import Record, Serve
from fault_server import MODEL_FOLDER, asked, await_outcomes, outcomes_text

import voxserve
from workload import FLEET

_DEEDS, _SECONDS = 40, 60
_FILES = ("1/weights.safetensors", "1/model.textproto", "config.textproto")


class Vandal(threading.Thread):
    """Damages the files of a model's folder and restores them, again and again, until stop()."""

    def __init__(self, folder: Path) -> None:
        super().__init__(daemon=True)
        self.deeds: Counter[str] = Counter()
        self._folder = folder
        self._stopped = threading.Event()
        self._draw = random.Random(1)

    def run(self) -> None:
        deeds = (self._cut, self._remove, self._swap, self._garble, self._remove_folder)
        while not self._stopped.is_set():
            deed = self._draw.choice(deeds)
            deed(self._folder / self._draw.choice(_FILES))
            self.deeds[deed.__name__.strip("_")] += 1
            self._stopped.wait(self._draw.uniform(0, 0.03))
            self.restore()
            self._stopped.wait(self._draw.uniform(0, 0.06))

    def stop(self) -> None:
        self._stopped.set()
        self.join()
        self.restore()

    def restore(self) -> None:
        (self._folder / "1").mkdir(exist_ok=True)
        for name in _FILES:
            shutil.copyfile(MODEL_FOLDER / name, self._folder / name)

    def _cut(self, file: Path) -> None:
        with file.open("r+b") as opened:
            opened.truncate(self._draw.randrange(file.stat().st_size))

    def _remove(self, file: Path) -> None:
        file.unlink()

    def _swap(self, file: Path) -> None:
        other = self._folder / self._draw.choice(_FILES)
        file.write_bytes(other.read_bytes())

    def _garble(self, file: Path) -> None:
        with file.open("r+b") as opened:
            opened.write(self._draw.randbytes(64))

    def _remove_folder(self, file: Path) -> None:
        shutil.rmtree(self._folder / "1")


def test_a_folder_that_changes_while_it_is_loaded(serve: Serve, record: Record) -> None:
    serving = serve("--model_poll_seconds=1")
    server, workload = serving.server, serving.workload
    loads: Counter[str] = Counter()
    vandal = Vandal(serving.models / FLEET)
    with (
        voxserve.Client(server.address, admin_address=server.admin_address) as client,
        asked(server, workload, "MODEL_NOT_FOUND", "MODEL_LOADING", "MODEL_FAILED", rate=3) as tally,
    ):
        vandal.start()
        end = time.monotonic() + _SECONDS
        while sum(vandal.deeds.values()) < _DEEDS and time.monotonic() < end:
            try:
                loads[f"version {client.load_model(FLEET)[0]}"] += 1
            except voxserve.InferenceError as error:
                loads[error.reason] += 1
        vandal.stop()
        await_outcomes(tally, 10)
    with voxserve.Client(server.address, admin_address=server.admin_address) as client:
        assert client.load_model(FLEET) == (1,)
        assert [version.problems for version in client.models()] == [()]
    with asked(server, workload) as after:
        await_outcomes(after, 20)
    told = ", ".join(f"{count} {text}" for text, count in loads.items())
    record(
        f"files cut, removed, swapped, garbled: {sum(vandal.deeds.values())} times, during {sum(loads.values())} loads",
        f"the operator: {told}; others: {outcomes_text(tally)}",
        "nothing",
    )
    assert server.process.poll() is None, server.log()[-2000:]
    assert set(loads) <= {"version 1", "BAD_MODEL", "MODEL_NOT_FOUND", "MODEL_FAILED"}
    assert loads["BAD_MODEL"] > 0
    assert tally.problems == {}
    assert after.problems == {}
