"""Makes one job per scan from the command line's files and folders: the file to read, and the files for its results."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from voxserve import box_file, label_file, readers, tensor_file

_TRUTH_EXTENSIONS = (".truth.u8", ".u8", ".label", ".npy")


class UsageError(ValueError):
    """The command line is wrong."""


@dataclass(frozen=True)
class ScanJob:
    """The files of one scan; "" for an output that is not asked for."""

    input: str
    save: str = ""
    truth: str = ""


def plan(inputs: Sequence[str], save: str = "", truth: str = "", extension: str = ".npy") -> list[ScanJob]:
    """Returns one job per scan. inputs: files and folders; a folder stands for its scans in the order of their names,
    without those of subfolders. save (results) and truth (true labels) each name a file, or a folder with one file per
    scan, named after the scan; "" for none. plan() creates the folder `save`; the files in it get the extension.

    UsageError if there is no scan, one output file for many scans, two scans that would write the same file, an output
    that would replace a scan or its truth, or an unknown extension. FileNotFoundError if an input or truth is missing.
    """
    scans = _find_scans(inputs)
    outputs: set[Path] = set()
    places = {Path(scan).resolve() for scan in scans}
    jobs = []
    for scan in scans:
        is_only = len(scans) == 1
        job = ScanJob(scan, _output_for(save, scan, is_only, extension), _truth_for(truth, scan, is_only))
        if job.save:
            place = Path(job.save).resolve()
            if place in outputs:
                raise UsageError(f"two scans named {_stem(scan)} would both write {job.save}")
            if place in places:
                raise UsageError(f"{job.save} would be written over the scan itself")
            if job.truth and place == Path(job.truth).resolve():
                raise UsageError(f"{job.save} would be written over the labels of people")
            outputs.add(place)
        jobs.append(job)
    return jobs


def _find_scans(inputs: Sequence[str]) -> list[str]:
    scans: list[str] = []
    for name in inputs:
        path = Path(name)
        if not path.exists():
            raise FileNotFoundError(f"{name}: no such file or folder")
        if not path.is_dir():
            scans.append(name)
            continue
        found = sorted(str(p) for p in path.iterdir() if p.is_file() and readers.is_point_cloud_file(p))
        if not found:
            raise UsageError(f"{name}: the folder has no scans (.bin, .pcd, .ply or .npy)")
        scans += found
    if not scans:
        raise UsageError("no scan named")
    return scans


def _stem(scan: str) -> str:
    """Returns a scan's name without folder and extension: "b" for "a/b.pcd.bin"."""
    path = Path(scan)
    return Path(path.stem).stem if path.name.lower().endswith(".pcd.bin") else path.stem


def is_file(output: str) -> bool:
    """Returns whether --save names a file and not a folder, which its extension decides."""
    return label_file.is_label_file(output) or box_file.is_box_file(output) or tensor_file.is_tensor_file(output)


def _output_for(output: str, scan: str, is_only: bool, extension: str) -> str:
    if not output:
        return ""
    if is_file(output):
        if not is_only:
            raise UsageError(f"--save {output} is one file, but there are several scans; name a folder")
        return output
    folder = Path(output)
    if folder.suffix and not folder.is_dir():
        raise UsageError(f"--save {output}: write a .npy or .npz file or a folder")
    folder.mkdir(parents=True, exist_ok=True)
    return str(folder / (_stem(scan) + extension))


def _truth_for(truth: str, scan: str, is_only: bool) -> str:
    if not truth:
        return ""
    if not Path(truth).is_dir():
        if not is_only:
            raise UsageError(f"--truth {truth} is one file, but there are several scans; name a folder")
        return truth
    for extension in _TRUTH_EXTENSIONS:
        candidate = Path(truth) / (_stem(scan) + extension)
        if candidate.exists():
            return str(candidate)
    raise FileNotFoundError(f"{truth}: no labels for {scan} ({_stem(scan)}.truth.u8, .u8, .label or .npy)")
