"""Makes one job per scan from the command line's files and folders: the file to read, and the files for its results.

A folder stands for all scans in it and below it, and the folder of results mirrors its subfolders. Files and folders
may be URLs (voxserve.storage).
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from voxserve import box_file, label_file, readers, storage, tensor_file

_TRUTH_EXTENSIONS = (".truth.u8", ".u8", ".label", ".npy")
_DOUBLE_ENDINGS = (".pcd.bin", ".copc.laz")


class UsageError(ValueError):
    """The command line is wrong."""


@dataclass(frozen=True)
class ScanJob:
    """The files of one scan; "" for an output that is not asked for."""

    input: str
    save: str = ""
    truth: str = ""


@dataclass(frozen=True)
class FoundFile:
    """A file of the command line, and its place in a folder of results."""

    path: str
    place: str  # relative to the folder of results, with the file's own extension

    def relative(self, extension: str) -> str:
        """Returns the place with another extension: "a/b.npy" for "a/b.pcd.bin"."""
        double = next((ending for ending in _DOUBLE_ENDINGS if self.place.lower().endswith(ending)), "")
        stem = self.place[: -len(double)] if double else str(Path(self.place).with_suffix(""))
        return stem + extension


def find_files(inputs: Sequence[str], is_wanted: Callable[[str], bool], save: str = "") -> list[FoundFile]:
    """Returns the files of a command line. inputs: files and folders; a folder stands for the wanted files in it and
    below it, in the order of their paths, without those in the folder `save`. The place of a folder's file is its path
    in the folder, that of another file its name. If two places are equal but for the extension, all files get their
    paths from the folder that they have in common. UsageError if a folder has no wanted file; FileNotFoundError.
    """
    found: list[FoundFile] = []
    skipped = storage.identity(save) if save else ""
    for name in inputs:
        if storage.is_folder(name):
            below = storage.files_below(name, is_wanted, skipped)
            if not below:
                raise UsageError(f"{name}: the folder has no scans ({_KINDS})")
            found += [FoundFile(storage.join(name, place), place) for place in below]
        elif storage.exists(name):
            found.append(FoundFile(name, Path(name).name))
        else:
            raise FileNotFoundError(f"{name}: no such file or folder")
    if not found:
        raise UsageError("no scan named")
    if max(Counter(each.relative("") for each in found).values()) > 1:
        whole = [each.path if storage.is_url(each.path) else storage.identity(each.path) for each in found]
        common = len(os.path.commonpath([str(Path(path).parent) for path in whole]).rstrip(os.sep)) + 1
        found = [replace(each, place=path[common:].lstrip(os.sep)) for each, path in zip(found, whole, strict=True)]
    return found


_KINDS = ".bin, .pcd, .ply, .npy, .las, .laz, .e57, .feather or .parquet"


def plan(inputs: Sequence[str], save: str = "", truth: str = "", extension: str = ".npy") -> list[ScanJob]:
    """Returns one job per scan. inputs: as in find_files(). save (results) and truth (true labels) each name a file, or
    a folder with one file per scan, at the scan's place or, of truth, also named after the scan; "" for none. The files
    in `save` get the extension; their folders are made.

    UsageError if there is no scan, one output file for many scans, two scans that would write the same file, an output
    that would replace a scan or its truth, or an unknown extension. FileNotFoundError if an input or truth is missing.
    """
    scans = find_files(inputs, readers.is_point_cloud_file, "" if is_file(save) else save)
    outputs: set[str] = set()
    places = {storage.identity(scan.path) for scan in scans}
    jobs = []
    for scan in scans:
        is_only = len(scans) == 1
        job = ScanJob(scan.path, _output_for(save, scan, is_only, extension), _truth_for(truth, scan, is_only))
        if job.save:
            place = storage.identity(job.save)
            if place in outputs:
                raise UsageError(f"two scans named {scan.relative('')} would both write {job.save}")
            if place in places:
                raise UsageError(f"{job.save} would be written over the scan itself")
            if job.truth and place == storage.identity(job.truth):
                raise UsageError(f"{job.save} would be written over the labels of people")
            outputs.add(place)
        jobs.append(job)
    if save and not is_file(save):
        for folder in {storage.parent(job.save) for job in jobs}:
            storage.make_folder(folder)
    return jobs


def is_file(output: str) -> bool:
    """Returns whether --save names a file and not a folder, which its extension decides."""
    return label_file.is_label_file(output) or box_file.is_box_file(output) or tensor_file.is_tensor_file(output)


def check_folder(output: str, kinds: str) -> None:
    """Raises UsageError if --save names no folder, but seems to name a file of another format than `kinds`. A name that
    ends in a separator or in a number, such as run_2024.06.01, is that of a folder, as is that of an existing one.
    """
    extension = Path(output).suffix[1:]
    if not extension or extension.isdecimal() or output.endswith(("/", os.sep)):
        return
    if not storage.is_url(output) and not storage.is_folder(output):
        raise UsageError(f"--save {output}: {kinds} can be written, and folders; end the name of a folder with /")


def _output_for(output: str, scan: FoundFile, is_only: bool, extension: str) -> str:
    if not output:
        return ""
    if is_file(output):
        if not is_only:
            raise UsageError(f"--save {output} is one file, but there are several scans; name a folder")
        return output
    check_folder(output, ".npy and .npz")
    return storage.join(output, scan.relative(extension))


def _truth_for(truth: str, scan: FoundFile, is_only: bool) -> str:
    if not truth:
        return ""
    if not storage.is_folder(truth):
        if not is_only:
            raise UsageError(f"--truth {truth} is one file, but there are several scans; name a folder")
        return truth
    stems = dict.fromkeys((scan.relative(""), Path(scan.relative("")).name))
    for stem in stems:
        for extension in _TRUTH_EXTENSIONS:
            candidate = storage.join(truth, stem + extension)
            if storage.exists(candidate):
                return candidate
    raise FileNotFoundError(f"{truth}: no labels for {scan.path} ({next(iter(stems))}.truth.u8, .u8, .label or .npy)")
