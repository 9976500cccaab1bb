"""The command batch: infer for folders that many machines share, and that take so long that a machine may fail.

- A shard is a part of the scans, chosen by a hash of the scan's place in the folder of results. So shards need not
  agree on a list, and a scan that is added later changes no other scan's shard.
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
from pathlib import Path
from typing import Any

import grpc

from voxserve import errors, input_file, storage
from voxserve.cli import infer, scan_jobs
from voxserve.cli.connection import connect
from voxserve.cli.manifest import Manifest
from voxserve.cli.report import ScanReport
from voxserve.cli.retrying import patiently
from voxserve.cli.scan_jobs import ScanJob, UsageError
from voxserve.client import Client
from voxserve.results import ModelState, ModelVersion

NOTE = "voxserve-batch.json"
_NOTE_SECONDS = 2.0  # for which another process may take to write the note


def run(options: argparse.Namespace) -> int:
    """Runs the command. Returns the exit status: 0 if every scan of the shard has its result, 1 if some failed."""
    if scan_jobs.is_file(options.save):
        raise UsageError(f"--save {options.save}: batch writes a folder")
    scans = scan_jobs.plan(options.scans)
    channels = min(options.concurrency, infer.MAX_CHANNELS)
    with connect(options, channels=channels) as client:
        options.version = options.version or _noted_version(options.save)
        model = patiently(lambda: _ready_model(client, options), options.retry)
        options.version = model.version
        extension = infer.extension_of(model, options)
        # The jobs of all shards, since no two scans may write the same file.
        jobs = scan_jobs.plan(options.scans, options.save, "", extension)
        infer.check_for(model, options, jobs)
        _claim(options.save, _note_of(model, options))
        number, count = options.shard
        mine = [job for job in jobs if shard_of(_place(job, options.save), count) == number]
        left = [job for job in mine if not storage.exists(job.save)]
        shard = f"shard {number} of {count}: " if count > 1 else ""
        summary = f"{shard}{len(mine)} of {len(scans)} scans, {len(mine) - len(left)} done before, {len(left)} to do"
        print(summary, file=sys.stderr)
        with Manifest(options.manifest) as manifest:
            return infer.run_many(left, _PatientRunner(options, client, model), manifest) if left else 0


def parse_shard(text: str) -> tuple[int, int]:
    """Parses the value I/N of --shard, with I from 1 to N. Returns (I, N)."""
    number, slash, count = text.partition("/")
    if not (slash and all(part.isascii() and part.isdigit() and len(part) < 7 for part in (number, count))):
        raise argparse.ArgumentTypeError(f"is '{text}', must be I/N such as 3/8")
    if not 1 <= int(number) <= int(count):
        raise argparse.ArgumentTypeError(f"is '{text}', must be from 1/{count} to {count}/{count}")
    return int(number), int(count)


def _place(job: ScanJob, folder: str) -> str:
    """Returns the place of a job's result in the folder of results, which is the same on every machine."""
    return storage.plain(job.save).removeprefix(storage.plain(folder)).lstrip("/" + os.sep)


def shard_of(place: str, count: int) -> int:
    """Returns the shard that a scan belongs to, from 1 to count. It depends only on the place of its result."""
    # A CRC would fill the shards unevenly: the CRCs of names that differ only in a number have similar low bits.
    digest = hashlib.sha256(os.fsencode(place)).digest()
    return int.from_bytes(digest[:8], "big") % count + 1


class _PatientRunner(infer.ScanRunner):
    """A ScanRunner that retries a scan, for up to --retry seconds, if it failed with a temporary error (_PASSING)."""

    def run(self, job: ScanJob) -> ScanReport:
        return patiently(lambda: super(_PatientRunner, self).run(job), self.options.retry)


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
        **({"compact": True} if options.compact else {}),
        "sample": [options.sample, options.sample_start, options.sample_use] if options.sample else [],
    }


def _read_note(folder: str) -> dict[str, Any]:
    """Returns the folder's note, or {} if there is none."""
    path = storage.join(folder, NOTE)
    try:
        noted = input_file.parse_json(storage.read(path))
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
    text = (json.dumps(note, indent=1) + "\n").encode()
    if storage.is_url(folder):
        path = storage.join(folder, NOTE)
        if not storage.exists(path):
            with storage.new(path) as file:
                file.write(text)
    else:
        _create(Path(storage.plain(folder)) / NOTE, text)
    noted = _read_note(folder)  # also if this process wrote it: another one may have replaced the object of a URL
    for name, value in note.items():
        if noted.get(name) != value:
            problem = f"has results of {name} {noted.get(name)!r}, and {value!r} is asked for"
            raise UsageError(f"{folder} {problem}; name another folder")


def _create(path: Path, text: bytes) -> None:
    """Creates a file with this text, unless it is there; also if another process creates it at the same time."""
    temporary = path.with_name(f"{path.name}.{os.getpid()}.{random.getrandbits(32):x}.part")
    temporary.write_bytes(text)
    try:
        os.link(temporary, path)
    except FileExistsError:
        pass
    except OSError:  # a file system without hard links, as some clusters and memory cards have it
        try:
            with path.open("xb") as file:
                file.write(text)
        except FileExistsError:
            end = time.monotonic() + _NOTE_SECONDS
            while path.stat().st_size < len(text) and time.monotonic() < end:
                time.sleep(0.01)
    finally:
        temporary.unlink()
