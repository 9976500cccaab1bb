"""The command batch: infer for folders that many machines share, and that take so long that a machine may fail.

- A shard is a part of the scans, chosen by a hash of the scan's file name. So shards need not agree on a list, and
  a scan that is added later changes no other scan's shard.
- A scan that has a result file is not run again: result files appear when they are complete. So the same command
  continues an interrupted one.
- The folder of results has a file, the note, with the model, its version and the settings. A shard or a later run with
  other settings is refused. The run keeps the note's version, also when the server has loaded a newer one.
- Scans with a temporary error (a full queue, a server that restarts) are retried for --retry. Inference changes nothing
  on the server, so a retry is safe.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import grpc

from voxserve import errors, input_file
from voxserve.cli import infer, scan_jobs
from voxserve.cli.connection import connect
from voxserve.cli.report import ScanReport
from voxserve.cli.scan_jobs import ScanJob, UsageError
from voxserve.client import Client
from voxserve.results import ModelState, ModelVersion

NOTE = "voxserve-batch.json"
_PASSING = {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.DEADLINE_EXCEEDED}
_LASTING = {"MODEL_FAILED", "MESSAGE_TOO_LARGE", "OUT_OF_MEMORY"}  # reasons for which a retry does not help
_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 10.0  # seconds
_Result = TypeVar("_Result")


def run(options: argparse.Namespace) -> int:
    """Runs the command. Returns the exit status: 0 if every scan of the shard has its result, 1 if some failed."""
    if scan_jobs.is_file(options.save):
        raise UsageError(f"--save {options.save}: batch writes a folder")
    scans = scan_jobs.plan(options.scans)
    channels = min(options.concurrency, infer.MAX_CHANNELS)
    with connect(options, channels=channels) as client:
        options.version = options.version or _noted_version(options.save)
        model = _patiently(lambda: _ready_model(client, options), options.retry)
        options.version = model.version
        extension = ".npz" if infer.asks_tensors(model, options) else ".npy"
        # The jobs of all shards, since no two scans may write the same file.
        jobs = scan_jobs.plan(options.scans, options.save, "", extension)
        infer.check_for(model, options, jobs)
        _claim(options.save, _note_of(model, options))
        number, count = options.shard
        mine = [job for job in jobs if shard_of(job.input, count) == number]
        left = [job for job in mine if not Path(job.save).exists()]
        shard = f"shard {number} of {count}: " if count > 1 else ""
        summary = f"{shard}{len(mine)} of {len(scans)} scans, {len(mine) - len(left)} done before, {len(left)} to do"
        print(summary, file=sys.stderr)
        return infer.run_many(left, _PatientRunner(options, client, model)) if left else 0


def parse_shard(text: str) -> tuple[int, int]:
    """Parses the value I/N of --shard, with I from 1 to N. Returns (I, N)."""
    number, slash, count = text.partition("/")
    if not (slash and all(part.isascii() and part.isdigit() and len(part) < 7 for part in (number, count))):
        raise argparse.ArgumentTypeError(f"is '{text}', must be I/N such as 3/8")
    if not 1 <= int(number) <= int(count):
        raise argparse.ArgumentTypeError(f"is '{text}', must be from 1/{count} to {count}/{count}")
    return int(number), int(count)


def shard_of(scan: str, count: int) -> int:
    """Returns the shard that a scan belongs to, from 1 to count. It depends only on the scan's file name."""
    # A CRC would fill the shards unevenly: the CRCs of names that differ only in a number have similar low bits.
    digest = hashlib.sha256(os.fsencode(Path(scan).name)).digest()
    return int.from_bytes(digest[:8], "big") % count + 1


class _PatientRunner(infer.ScanRunner):
    """A ScanRunner that retries a scan, for up to --retry seconds, if it failed with a temporary error (_PASSING)."""

    def run(self, job: ScanJob) -> ScanReport:
        return _patiently(lambda: super(_PatientRunner, self).run(job), self.options.retry)


def _patiently(ask: Callable[[], _Result], seconds: float) -> _Result:
    """Returns what `ask` returns. Calls `ask` again while it raises a temporary error (_PASSING), for up to `seconds`,
    then raises the error. The pauses between the calls grow, and are random so that many clients do not retry at the
    same time. If the server asks for a longer pause (retry_after), that pause is used.
    """
    end = time.monotonic() + seconds
    pause = _FIRST_PAUSE
    while True:
        try:
            return ask()
        except errors.InferenceError as error:
            wait = max(error.retry_after or 0.0, pause * random.uniform(0.5, 1.0))
            if error.code not in _PASSING or error.reason in _LASTING or time.monotonic() + wait > end:
                raise
            time.sleep(wait)
            pause = min(2 * pause, _LONGEST_PAUSE)


def _ready_model(client: Client, options: argparse.Namespace) -> ModelVersion:
    model = client.model(options.model, options.version)
    if model.state is ModelState.READY:
        return model
    reason = "MODEL_FAILED" if model.state is ModelState.FAILED else "MODEL_LOADING"
    state = model.state.name.lower()
    raise errors.make(grpc.StatusCode.UNAVAILABLE, f"{model.name} version {model.version} is {state}", reason)


def _note_of(model: ModelVersion, options: argparse.Namespace) -> dict[str, Any]:
    """Returns the note that the folder of results gets: the settings that all results in the folder have in common."""
    return {
        "model": model.name,
        "version": model.version,
        "digest": model.digest,
        "outputs": list(options.outputs),
        "tensor_type": options.tensor_type,
        "fields": options.fields,
        "sample": [options.sample, options.sample_start, options.sample_use] if options.sample else [],
    }


def _read_note(folder: str) -> dict[str, Any]:
    """Returns the folder's note, or {} if there is none."""
    path = Path(folder) / NOTE
    try:
        noted = input_file.parse_json(input_file.read(path))
    except FileNotFoundError:
        return {}
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
    if not isinstance(noted, dict):
        raise ValueError(f"{path}: must be an object")
    return noted


def _noted_version(folder: str) -> int:
    version = _read_note(folder).get("version", 0)
    return version if isinstance(version, int) else 0


def _claim(folder: str, note: dict[str, Any]) -> None:
    """Writes the note into the folder. Raises UsageError if the folder already has a different note."""
    path = Path(folder) / NOTE
    temporary = path.with_name(f"{NOTE}.{os.getpid()}.{random.getrandbits(32):x}.part")
    temporary.write_text(json.dumps(note, indent=1) + "\n", encoding="utf-8")
    try:
        os.link(temporary, path)  # fails if the folder already has a note, even if another process has just written it
    except FileExistsError:
        noted = _read_note(folder)
        for name, value in note.items():
            if noted.get(name) != value:
                problem = f"has results of {name} {noted.get(name)!r}, and {value!r} is asked for"
                raise UsageError(f"{folder} {problem}; name another folder") from None
    finally:
        temporary.unlink()
