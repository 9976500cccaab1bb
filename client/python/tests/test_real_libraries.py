"""Compares networks of torchsparse, spconv and MinkowskiEngine themselves with their exported models.

Random weights and statistics, float32 without TF32. Each library's tests skip where it is not installed, and those of
torchsparse where there is no GPU. As a script it prints a table, and compares a server's answers too:

    PYTHONPATH=client/python/src python client/python/tests/test_real_libraries.py [SERVER] [--golden FOLDER]

SERVER is the server's binary. --golden writes the small networks of torchsparse with what it computed: it made
tests/golden/libraries. The status is 1 if something deviates, or if no library was found.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import shutil
import sys
import tempfile
import traceback
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
import library_networks  # noqa: E402
import traced_networks as networks  # noqa: E402
from conftest import REPOSITORY, serving  # noqa: E402
from library_networks import CASES, Case  # noqa: E402

import voxserve  # noqa: E402
from voxserve.export import from_torch  # noqa: E402
from voxserve.verify import served  # noqa: E402
from voxserve.verify.compare import Comparison, Deviation, Model  # noqa: E402
from voxserve.verify.reference import Reference, read  # noqa: E402
from voxserve.verify.sites import rows_of  # noqa: E402

TOLERANCE = 1e-4  # relative to an output's largest magnitude
CONFIG = "precision: PRECISION_FLOAT32\n"
ids = [f"{case.library}: {case.name}" for case in CASES]


@dataclass(frozen=True)
class RoundTrip:
    """How far an exported model, run by NumPy, deviates from the library's own outputs and inner results (modules)."""

    num_sites: int
    outputs: dict[str, Deviation]
    modules: list[tuple[str, Deviation]]
    skipped: dict[str, str]
    reference: Any

    def check(self) -> None:
        assert self.skipped == {}
        assert self.outputs
        for name, deviation in (*self.outputs.items(), *self.modules):
            assert deviation.is_within(TOLERANCE), f"{name}: {deviation}"
        assert all(deviation.magnitude > 0.1 for deviation in self.outputs.values())


def missing(case: Case) -> str:
    """Returns why a case cannot run; "" if it can."""
    if importlib.util.find_spec(case.library) is None:
        return f"{case.library} is not installed"
    return "torchsparse needs a GPU" if case.device == "cuda" and not torch.cuda.is_available() else ""


@contextmanager
def exact() -> Iterator[None]:
    """Switches TF32 off and sets one thread, because with more threads spconv 2.3 on a CPU loses some of the sums."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    if "torchsparse" in sys.modules and hasattr(sys.modules["torchsparse"], "backends"):
        sys.modules["torchsparse"].backends.allow_tf32 = False
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def round_trip(case: Case, folder: Path, device: str) -> RoundTrip:
    """Writes the exported model to `folder`, and compares its results with the library's."""
    networks.load(case.library)
    with exact(), torch.no_grad():
        module, example, options = case.make(device)
        from_torch(module, example, **options).write(folder, config=CONFIG)
        module, example, _ = case.make(device)  # a new module, which was never traced
        reference = voxserve.record(module, example, folder.with_suffix(".npz"))
    comparison = Comparison(Model.read(folder), reference)
    return RoundTrip(
        len(reference.input.values), comparison.outputs(), comparison.modules(), comparison.skipped, reference
    )


@pytest.mark.filterwarnings("ignore")  # ignores the warnings of spconv and its libraries
@pytest.mark.parametrize("case", CASES, ids=ids)
def test_round_trip(tmp_path: Path, case: Case) -> None:
    if reason := missing(case):
        pytest.skip(reason)
    round_trip(case, tmp_path / "model", case.device).check()


@pytest.mark.usefixtures("stand_in_libraries")
@pytest.mark.parametrize("case", [c for c in CASES if c.has_stand_in], ids=lambda case: f"{case.library}: {case.name}")
def test_round_trip_of_stand_ins(tmp_path: Path, case: Case) -> None:
    round_trip(case, tmp_path / "model", "cpu").check()


@pytest.mark.usefixtures("stand_in_libraries")
@pytest.mark.parametrize("case", [c for c in CASES if c.golden], ids=lambda case: case.golden)
def test_stand_ins_compute_what_the_library_did(tmp_path: Path, case: Case) -> None:
    module, example, _ = case.make("cpu")
    golden = read(REPOSITORY / "tests" / "golden" / "libraries" / case.golden / "reference.npz")
    made = voxserve.record(module, example, tmp_path / "reference.npz")
    np.testing.assert_array_equal(made.input.values, golden.input.values)
    assert set(made.outputs) == set(golden.outputs)
    for name, rows in golden.outputs.items():
        ours, at = made.outputs[name], slice(None)
        if rows.coordinates is not None and ours.coordinates is not None:
            assert len(ours.coordinates) == len(rows.coordinates), name
            at = rows_of(ours.coordinates, rows.coordinates)
            assert (at >= 0).all(), name
        largest = np.abs(rows.values).max()
        np.testing.assert_allclose(ours.values[at] / largest, rows.values / largest, atol=TOLERANCE, err_msg=name)


@pytest.mark.integration
def test_the_server_computes_the_same(tmp_path: Path, stand_in_libraries: None) -> None:
    trips = {f"m{i}": round_trip(c, tmp_path / f"m{i}", "cpu") for i, c in enumerate(CASES) if c.has_stand_in}
    with serving(tmp_path, tmp_path.parent / "log") as address:
        for name, trip in trips.items():
            for key, deviation in served.deviations(Model.read(tmp_path / name), trip.reference, address, name).items():
                assert deviation.is_within(TOLERANCE), f"{name}, {key}: {deviation}"


def test_sites_that_torchsparse_leaves_out_are_told(tmp_path: Path) -> None:
    case = next(case for case in CASES if case.make is library_networks._unet)
    if reason := missing(case):
        pytest.skip(reason)
    with exact():
        module, _, _ = case.make("cuda")
        example = library_networks._torchsparse_example((7, 10, 6)).to("cuda")
        with pytest.warns(UserWarning, match="torchsparse leaves out .* sites at the end of the batch's extent"):
            from_torch(module, example)


def main(binary: str, golden: str) -> int:
    here = {f"m{i}": case for i, case in enumerate(CASES) if not missing(case)}
    print("| library | network | sites | results compared | largest deviation | the server's |")
    print("|---|---|--:|--:|--:|--:|")
    with tempfile.TemporaryDirectory() as name, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        folder = Path(name) / "models"
        folder.mkdir()
        trips = {m: trip for m, case in here.items() if (trip := _tried(case, folder / m)) is not None}
        answers = _served(binary, folder, trips) if binary and trips else {}
        for m in trips if golden else ():
            if here[m].golden:
                shutil.copytree(folder / m, Path(golden) / here[m].golden)
                Reference(trips[m].reference.input, trips[m].reference.outputs).write(
                    Path(golden) / here[m].golden / "reference.npz"
                )
    is_right = bool(trips) and len(trips) == len(here)
    for m, trip in trips.items():
        compared, of_server = [*trip.outputs.values(), *(d for _, d in trip.modules)], answers.get(m, {}).values()
        problems = [d.problem for d in (*compared, *of_server) if d.problem] + list(trip.skipped.values())
        shown = [f"{_relative(part):.1e}" if part else "" for part in (compared, of_server)]
        print(f"| {here[m].library} | {here[m].name} | {trip.num_sites:,} | {len(compared)} | {' | '.join(shown)} |")
        print(*(f"{here[m].name}: {problem}\n" for problem in problems), sep="", end="", file=sys.stderr)
        is_right = is_right and not problems and max(map(_relative, (compared, of_server))) <= TOLERANCE
        is_right = is_right and (not binary or bool(of_server))
    print(*(f"\nNot run: {reason}." for reason in sorted({missing(case) for case in CASES} - {""})), sep="\n")
    print("\nWithin" if is_right else "\nNOT within", f"{TOLERANCE:g} of the largest magnitude.")
    return 0 if is_right else 1


def _tried(case: Case, folder: Path) -> RoundTrip | None:
    try:
        return round_trip(case, folder, case.device)
    except Exception:  # the other cases still get their rows in the table
        print(f"{case.library}, {case.name}: failed", file=sys.stderr)
        traceback.print_exc()
        return None


def _served(binary: str, folder: Path, trips: dict[str, RoundTrip]) -> dict[str, dict[str, Deviation]]:
    os.environ["VOXSERVE_BINARY"] = binary
    answers = {}
    try:
        with serving(folder, folder.parent / "log") as address:
            for name, trip in trips.items():
                answers[name] = served.deviations(Model.read(folder / name), trip.reference, address, name)
    except (Exception, pytest.fail.Exception):
        traceback.print_exc()
    return answers


def _relative(deviations: Any) -> float:
    """Returns the largest of the deviations, each divided by its result's largest magnitude."""
    return max((d.largest / d.magnitude if d.magnitude else d.largest for d in deviations), default=0.0)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("server", nargs="?", default="")
    parser.add_argument("--golden", default="")
    options = parser.parse_args()
    sys.exit(main(options.server, options.golden))
