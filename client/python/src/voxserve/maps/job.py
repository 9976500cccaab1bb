"""Labels the files of one command line, one after the other."""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from voxserve import errors, field_spec, pieces, readers, storage
from voxserve.cli.connection import ready
from voxserve.cli.infer import warn_of_new_names
from voxserve.cli.progress import Progress
from voxserve.cli.scan_jobs import UsageError, check_folder, find_files
from voxserve.client import Client
from voxserve.maps import labelling, legend
from voxserve.maps.features import choose, describe
from voxserve.maps.islands import Islands
from voxserve.maps.labelling import Count, Counts, Tell
from voxserve.maps.spool import Spool
from voxserve.maps.tiles import Plan
from voxserve.maps.votes import Asker, Limits, bounded
from voxserve.maps.work import Work
from voxserve.pieces import PieceReader
from voxserve.results import ModelVersion


@dataclass(frozen=True)
class MapJob:
    """One cloud, and the file that its labelled copy is written to."""

    input: str
    save: str


def plan(options: argparse.Namespace) -> list[MapJob]:
    """Returns the jobs of a command line. UsageError if two copies had the same name, or one replaced an input, and for
    a --save of a format that cannot be written.
    """
    ending = f".{options.format.lstrip('.')}" if options.format else ""
    files = find_files(options.clouds, readers.is_point_cloud_file, options.save)
    if pieces.is_writable(options.save):
        if len(files) > 1:
            raise UsageError(f"--save {options.save} is one file, but there are {len(files)} clouds; name a folder")
        jobs = [MapJob(files[0].path, options.save)]
    else:
        kinds = f"{', '.join(pieces.WRITABLE)}, .label and .npy"
        check_folder(options.save, kinds)
        if ending and not pieces.is_writable(f"a{ending}"):
            raise UsageError(f"--format {options.format}: {kinds} can be written")
        jobs = [
            MapJob(each.path, storage.join(options.save, each.relative(ending or _ending(each.path)))) for each in files
        ]
    inputs = {storage.identity(each.path) for each in files}
    outputs = [storage.identity(each.save) for each in jobs]
    for each, output in zip(jobs, outputs, strict=True):
        if output in inputs:
            raise UsageError(f"{each.save} would be written over a cloud itself")
        if outputs.count(output) > 1:
            raise UsageError(f"two clouds would both be written to {each.save}")
    if storage.is_url(options.save) and not options.work:
        raise UsageError("--save is a URL, so --work must name a folder of this machine")
    return jobs


def _ending(path: str) -> str:
    """Returns the format of the copy of a file, if none is asked for."""
    ending = pieces.ending_of(path)
    return ending if ending in pieces.WRITABLE else ".laz"


@dataclass(frozen=True)
class MapReport:
    """The result of one file."""

    job: MapJob
    model: ModelVersion
    counts: Counts
    names: dict[int, str]
    seconds: float
    num_tiles: int

    def row(self) -> dict[str, Any]:
        """Returns the row of the manifest."""
        return {
            "file": self.job.input,
            "save": self.job.save,
            "model": self.model.name,
            "version": self.model.version,
            "digest": self.model.digest,
            "points": self.counts.points,
            "unclassified": self.counts.unclassified,
            "tiles": self.num_tiles,
            "seconds": round(self.seconds, 3),
            "classes": {self.names.get(code, str(code)): n for code, n in sorted(self.counts.by_code.items())},
        }

    def text(self) -> str:
        """Returns the report for people."""
        counts = self.counts
        text = (
            f"{self.job.input}: {counts.points:,} points in {self.num_tiles:,} tiles labelled by {self.model.name} "
            f"version {self.model.version} in {self.seconds:.1f} s\n"
        )
        for code, number in sorted(counts.by_code.items(), key=lambda item: -item[1]):
            share = 100 * number / max(1, counts.points)
            text += f"  {code:>5} {self.names.get(code, ''):<24} {number:>14,} {share:>6.1f}%\n"
        text += "".join(f"  note: {note}\n" for note in counts.notes)
        return text + f"wrote {self.job.save}\n"


def failure(job: MapJob, error: Exception) -> dict[str, Any]:
    """Returns the row of the manifest for a file that could not be labelled."""
    code, reason, message = "INVALID_ARGUMENT", "", str(error)
    if isinstance(error, errors.InferenceError):
        code, reason, message = error.code.name, error.reason, error.message
    return {"file": job.input, "save": job.save, "error": {"code": code, "reason": reason, "message": message}}


_UNKNOWN_REACH_OVERLAP = 5.0  # metres


def overlap_of(asked: float | None, tile: float, reach: float) -> float:
    """Returns the overlap in metres. asked: by the user, or None. reach: 0 if it is unbounded or not known."""
    return asked if asked is not None else min(reach or _UNKNOWN_REACH_OVERLAP, tile / 4)


def _overlap_text(model: ModelVersion, reach: float, overlap: float, turns: int) -> str:
    """Tells people what the overlap means for the seams."""
    if model.reach is None:
        return f"the server does not tell the reach of {model.name}; tiles overlap by {overlap:g} m"
    if not reach:
        return f"the reach of {model.name} is unbounded ({model.reach.unbounded_by}); tiles overlap by {overlap:g} m"
    if reach <= overlap:
        read = [feature.name for feature in model.features if feature.name.lower() in ("x", "y", "z")]
        but = "seams change nothing"
        if turns > 1:
            but = "but copies are turned about the middle of each tile; seams may show"
        elif 0 in model.reach.minimum_period:
            but = (
                "but it reads where a cloud's smallest coordinates are, which differ from tile to tile; seams may show"
            )
        elif read:
            but = f"but it reads {', '.join(read)}, which count from each tile"
        return f"tiles overlap by the reach of {model.name}, {reach:g} m; {but}"
    return f"the reach of {model.name} is {reach:g} m, more than the overlap of {overlap:g} m; seams may show"


class Runner:
    """Labels files with one model."""

    def __init__(self, options: argparse.Namespace, client: Client) -> None:
        self._options, self._client = options, client
        self._model = ready(client, options.model, options.version)
        if not self._model.has_labels:
            raise ValueError(f"{self._model.name} answers with boxes alone, and no labels")
        warn_of_new_names("voxserve.maps", options.fields, self._model)
        self._spec = field_spec.parse(options.fields) if options.fields else None
        self._legend = legend.make(self._model.classes, self._model.ignore_label, options.codes)
        self._islands = Islands(options.islands, options.island_size) if options.islands else None
        self._reach = bounded(self._model.reach)
        self._overlap = overlap_of(options.overlap, options.tile, self._reach)
        print(
            f"voxserve.maps: {_overlap_text(self._model, self._reach, self._overlap, options.turns)}", file=sys.stderr
        )

    def is_done(self, job: MapJob) -> bool:
        """Returns whether the copy is there, and nothing of it is left to do."""
        return storage.exists(job.save) and not self._folder(job).exists()

    def _folder(self, job: MapJob) -> Path:
        if not self._options.work:
            return Path(f"{storage.plain(job.save)}.work")
        name = storage.plain(job.save).strip("/").replace("://", "_").replace("/", "_")
        return Path(self._options.work) / f"{name}.work"

    def run(self, job: MapJob) -> MapReport:
        """Labels a file, or goes on with one that was begun. OSError, ValueError, InferenceError."""
        folder = self._folder(job)
        folder.parent.mkdir(parents=True, exist_ok=True)
        storage.make_folder(storage.parent(job.save))
        source = Path(storage.plain(job.input))
        if storage.is_url(job.input):
            folder.mkdir(exist_ok=True)
            source = folder / f"input_{Path(job.input).name}"
            storage.fetch(job.input, source)
        with pieces.open_reader(source, self._spec) as reader:
            work = Work(folder, self._note(job, source, reader))
            try:
                report = self._label(job, reader, work)
            except ValueError:  # the file is damaged, or does not suit the model
                work.close() if work.has_answers() else work.remove()
                raise
            except BaseException:
                work.close()
                raise
        if self._options.keep_work:
            work.close()
        else:
            work.remove()
        return report

    def _note(self, job: MapJob, source: Path, reader: PieceReader) -> dict[str, Any]:
        model, options, status = self._model, self._options, source.stat()
        return {
            "input": storage.identity(job.input),
            "bytes": status.st_size,
            "points": reader.contents.num_points,
            "model": f"{model.name} {model.version} {model.digest}",
            "fields": options.fields,
            "tile": options.tile,
            "overlap": self._overlap,
            "reach": self._reach,
            "passes": options.passes,
            "turns": options.turns,
            "height": options.height,
            "metres_per_unit": options.metres_per_unit,
            # Limits decide how dense places are divided.
            "limits": [
                model.max_points,
                model.max_voxels,
                model.max_message_bytes,
                options.tile_points,
                options.max_message_bytes,
            ],
        }

    def _metres(self, job: MapJob, reader: PieceReader) -> tuple[float, float, float]:
        contents = reader.contents
        if unit := self._options.metres_per_unit:
            return unit, unit, unit
        if contents.is_geographic:
            raise ValueError(
                f"{job.input}: the coordinates are degrees; project the file first, or say with --metres_per_unit what "
                "a unit is"
            )
        return contents.metres

    def _label(self, job: MapJob, reader: PieceReader, work: Work) -> MapReport:
        options, start = self._options, time.perf_counter()
        pieces.check_writable(job.save, reader)
        metres = self._metres(job, reader)
        features = choose(job.input, reader.contents, self._model, self._spec)
        for name, source in describe(features).items():
            if name != source:
                print(f"voxserve.maps: {job.input}: {name} is {source}", file=sys.stderr)
        limits = Limits.of(self._model, features, options.max_message_bytes, options.tile_points)
        spool = Spool(work.points, features.dtype, options.tile)
        promised = reader.contents.num_points
        with _Shown(promised, "points read", int(work.stored()["points"])) as tell:
            labelling.store(reader, features, metres, spool, work, tell)
        spool.split(limits.points, max(self._overlap, max(self._model.voxel_size[:3], default=0.0)))
        tiles = Plan(spool, self._overlap, options.passes, self._reach)
        asker = Asker(
            self._client, self._model, features, tiles, limits, options.turns, options.height, options.retry
        )  # fmt: skip
        ids = [info.id for info in self._model.classes]
        total = sum(spool.sizes.values())
        count = Count(tiles, work, spool, lambda tile: asker.ask(tile.rect(spool.edge)), ids)
        with _Shown(total, "points labelled", count.num_points) as tell:
            count.run(options.concurrency, tell)
        if self._islands is not None:
            with _Shown(total, "points searched for islands") as tell:
                labelling.absorb_islands(tiles, spool, work, self._islands, tell)
        is_url, ending = storage.is_url(job.save), pieces.ending_of(job.save)
        target = work.folder / f"output{ending}" if is_url else storage.plain(job.save)
        with _Shown(promised, "points written") as tell:
            counts = labelling.write(
                str(target), reader, spool, work, self._legend, options.unclassified_below, self._islands, tell
            )
        if is_url:
            storage.put(Path(target), job.save)
        if counts.points > total:
            counts.notes.append(f"{counts.points - total:,} points have NaN or infinite coordinates")
        elapsed = time.perf_counter() - start
        return MapReport(job, self._model, counts, self._legend.names, elapsed, len(tiles.tiles))


class _Shown:
    """Shows the progress of one step."""

    def __init__(self, total: int, what: str, before: int = 0) -> None:
        self._progress = Progress(total, what, before=before, name="voxserve.maps")

    def __enter__(self) -> Tell:
        self._progress.__enter__()
        return lambda done, _total: self._progress.update(done)

    def __exit__(self, *_: object) -> None:
        self._progress.__exit__()
