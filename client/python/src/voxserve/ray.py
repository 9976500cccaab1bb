"""Labels scans on a Ray cluster, with Ray Data. Needs: pip install 'voxserve[ray]'

    scans = voxserve.ray.scans(["s3://drives/2026"], save="s3://labels/2026")
    done = voxserve.ray.label(scans, "minkunet", voxserve.Client("dns:///voxserve:8500"), workers=8)
    done.write_parquet("s3://labels/manifest")

Each worker is an actor with a client of its own, which keeps a few scans in flight. With a folder of models in place of
the client, each worker has an engine of its own (voxserve.Engine), on the GPUs that Ray gives it:

    done = voxserve.ray.label(scans, "minkunet", "/models", workers=8, num_gpus=1)

Ray starts a dead worker again and repeats its batch. Inference changes nothing, and a result file appears when it is
complete, so a repetition does no harm. Scans that have their result are not run again. A scan that cannot be labelled
is a row with its error. A server that does not answer for `retry` seconds ends the run; the next run goes on from
there.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from voxserve import errors, label_file, readers, storage
from voxserve.cli import scan_jobs
from voxserve.cli.retrying import patiently
from voxserve.client import Client
from voxserve.engine import Engine
from voxserve.feature_warning import settle_bits
from voxserve.pieces.reader import library
from voxserve.results import Labels

Batch = Mapping[str, npt.NDArray[Any]]
# Errors of the server as a whole, and not of one scan. Ray repeats the batch.
_OF_SERVER = (errors.UnavailableError, errors.UnauthenticatedError, errors.PermissionDeniedError, errors.NotFoundError)


def scans(inputs: Sequence[str], save: str = "", extension: str = ".npy") -> Any:
    """Returns a Ray dataset with a row for each scan: "path", and "save", the file for its labels. inputs, save: files,
    folders and URLs, as the command batch takes them. save "": the labels become a column.
    """
    jobs = scan_jobs.plan(inputs, save, "", extension)
    data = library("ray.data")
    return data.from_items([{"path": job.input, **({"save": job.save} if save else {})} for job in jobs])


def label(
    dataset: Any,
    model: str,
    client: Client | str | Path,
    *,
    workers: int | tuple[int, int] = 2,
    in_flight: int = 4,
    batch_size: int = 16,
    fields: str = "",
    version: int = 0,
    retry: float = 300.0,
    labeller: type[ScanLabeller] | None = None,
    **resources: Any,
) -> Any:
    """Returns the dataset with the columns of ScanLabeller. Nothing runs before the result is used.

    dataset: rows as scans() makes them. client: is pickled, with its token, and each worker gets one like it; or the
        folder of a model, or of models, that every machine has: each worker runs it in its own process.
    workers: actors, or the least and most of them. in_flight: scans that a worker has at the server at once; the server
        refuses more than its queue takes, and the worker tries again. batch_size: scans of a batch, which is repeated
        as a whole. labeller: a subclass of ScanLabeller. resources: further arguments of Dataset.map_batches, such as
        num_cpus.
    """
    arguments = {"model": model, "client": client, "in_flight": in_flight, "fields": fields, "version": version,
                 "retry": retry}  # fmt: skip
    least, most = (workers, workers) if isinstance(workers, int) else workers
    pool = library("ray.data").ActorPoolStrategy(min_size=least, max_size=most)
    settings = {"max_restarts": -1, "max_task_retries": -1, **resources}
    return dataset.map_batches(
        labeller or ScanLabeller, fn_constructor_kwargs=arguments, compute=pool, batch_size=batch_size, **settings
    )


class ScanLabeller:
    """Labels batches of scans, in an actor of Ray Data.

    A batch has the column "path", and may have "save". The result has all columns, and

    points   the number of points; -1 for a scan that was not run
    classes  JSON: the points of each class by its name
    error    JSON with code, reason and message; "" for none
    labels   uint8 or uint16 [points], without "save"
    """

    def __init__(
        self,
        model: str,
        client: Client | str | Path,
        *,
        in_flight: int = 4,
        fields: str = "",
        version: int = 0,
        retry: float = 300.0,
    ) -> None:
        self._model, self._fields, self._version, self._retry = model, fields, version, retry
        self._client = Engine(client) if isinstance(client, str | Path) else client
        self._pool = ThreadPoolExecutor(in_flight)
        self._names: dict[int, str] | None = None
        settle_bits(model, (), fields)

    def __call__(self, batch: Batch) -> dict[str, Any]:
        """Returns the batch with its results. InferenceError if the server does not answer, or refuses every scan."""
        saves = batch.get("save", np.full(len(batch["path"]), ""))
        rows = list(self._pool.map(self._run, batch["path"].tolist(), saves.tolist()))
        result: dict[str, Any] = dict(batch)
        for name in ("points", "classes", "error"):
            result[name] = np.array([row[name] for row in rows])
        if "save" not in batch:
            result["labels"] = _ragged([row["labels"] for row in rows])
        return result

    def _run(self, path: str, save: str) -> dict[str, Any]:
        row: dict[str, Any] = {"points": -1, "classes": "{}", "error": "", "labels": np.zeros(0, np.uint8)}
        if save and storage.exists(save):
            return row
        try:
            cloud = readers.read(path, self._fields)
            answer = patiently(
                lambda: self._client.infer(self._model, cloud, version=self._version), self._retry
            )  # fmt: skip
        except _OF_SERVER:
            raise
        except (errors.InferenceError, OSError, ValueError) as error:
            return {**row, "error": json.dumps(_described(error))}
        if save:
            label_file.write(save, answer.labels)
        ids, numbers = np.unique(answer.labels, return_counts=True)
        counted = {self._name(class_id): n for class_id, n in zip(ids.tolist(), numbers.tolist(), strict=True)}
        return {**row, "points": len(answer.labels), "classes": json.dumps(counted), "labels": answer.labels}

    def _name(self, class_id: int) -> str:
        if self._names is None:
            self._names = {info.id: info.name for info in self._client.model(self._model, self._version).classes}
        return self._names.get(class_id, "unlabelled")


def _described(error: Exception) -> dict[str, str]:
    if isinstance(error, errors.InferenceError):
        return {"code": error.code.name, "reason": error.reason, "message": error.message}
    code = "NOT_FOUND" if isinstance(error, FileNotFoundError) else "INVALID_ARGUMENT"
    return {"code": code, "reason": "", "message": str(error)}


def _ragged(arrays: Sequence[Labels]) -> npt.NDArray[np.object_]:
    """Returns arrays of different lengths as one array of objects."""
    ragged = np.empty(len(arrays), object)
    for index, values in enumerate(arrays):
        ragged[index] = values
    return ragged
