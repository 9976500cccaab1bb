"""Runs the notebooks of client/python/notebooks against a real server, as a person would, and measures their size."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import REPOSITORY, ServerAddress

NOTEBOOKS = Path(__file__).resolve().parents[1] / "notebooks"
MAX_BYTES = 100_000  # of five executed cells
_SECONDS = 300  # for a cell, on a busy machine

pytestmark = pytest.mark.integration


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """A folder for a notebook and its files, with the repository where the notebook looks for it."""
    (tmp_path / "client" / "python" / "notebooks").mkdir(parents=True)
    (tmp_path / "deploy").symlink_to(REPOSITORY / "deploy")
    yield tmp_path / "client" / "python" / "notebooks"
    shutil.rmtree(tmp_path, ignore_errors=True)


def executed(name: str, folder: Path, address: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Returns the notebook with its outputs. An exception in a cell fails the test, with the cell."""
    nbformat = pytest.importorskip("nbformat", reason="nbformat is not installed (the extra test)")
    nbclient = pytest.importorskip("nbclient", reason="nbclient is not installed (the extra test)")
    for library in ("ipykernel", "matplotlib", "pandas"):
        pytest.importorskip(library, reason=f"{library} is not installed (the extra test)")
    monkeypatch.setenv("VOXSERVE_ADDRESS", address)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(NOTEBOOKS.parent / "src"), os.environ.get("PYTHONPATH", "")]))
    notebook = nbformat.read(NOTEBOOKS / name, 4)
    client = nbclient.NotebookClient(
        notebook, timeout=_SECONDS, kernel_name="python3", resources={"metadata": {"path": str(folder)}}
    )
    client.execute()
    if keep := os.environ.get("VOXSERVE_KEEP_NOTEBOOKS"):  # a folder, to look at them
        nbformat.write(notebook, Path(keep) / name)
    return notebook


def outputs_of(notebook: Any) -> list[str]:
    """Returns the outputs of each cell of code as JSON."""
    return [json.dumps(cell.outputs) for cell in notebook.cells if cell.cell_type == "code"]


@pytest.mark.filterwarnings("ignore")  # of jupyter_client and zmq
def test_segment_and_detect(folder: Path, real_server: ServerAddress, monkeypatch: pytest.MonkeyPatch) -> None:
    notebook = executed("segment_and_detect.ipynb", folder, real_server, monkeypatch)
    outputs = outputs_of(notebook)
    assert sum(map(len, outputs[:5])) < MAX_BYTES, [len(output) for output in outputs]
    assert "<PointCloud of 107,288 points: x, y, z, intensity (f32); 1.7 MB>" in outputs[1]
    assert "image/png" in outputs[1]
    for output in outputs[2:4]:
        assert "data:image/png;base64," in output
    assert "building" in outputs[2]
    assert "pedestrian" in outputs[3]
    agreeing = float(outputs[6].partition("%")[0].rpartition(" ")[2].strip('"'))
    assert agreeing > 90, "as deploy/demo.sh shows"
    assert "image/png" in outputs[5]
    assert (folder / "labels.label").stat().st_size == 4 * 107_288
    assert json.loads((folder / "boxes.json").read_text())[0]["class_name"] == "car"


@pytest.mark.filterwarnings("ignore")
def test_drive(folder: Path, real_server: ServerAddress, monkeypatch: pytest.MonkeyPatch) -> None:
    outputs = outputs_of(executed("drive.ipynb", folder, real_server, monkeypatch))
    assert sum(map(len, outputs[:5])) < MAX_BYTES, [len(output) for output in outputs]
    assert "<Detections by centerpoint" in outputs[1].replace("&lt;", "<") or "Detections by centerpoint" in outputs[1]
    assert "car" in outputs[2]
    assert "image/png" in outputs[3]
    assert (folder / "drive.csv").read_text().count("\n") > 6 * 20


@pytest.mark.parametrize("name", ["segment_and_detect.ipynb", "drive.ipynb"])
def test_notebooks_in_the_tree_have_no_outputs(name: str) -> None:
    cells = json.loads((NOTEBOOKS / name).read_text())["cells"]
    assert all(not cell["outputs"] and cell["execution_count"] is None for cell in cells if cell["cell_type"] == "code")


def test_every_notebook_is_run() -> None:
    assert {path.name for path in NOTEBOOKS.glob("*.ipynb")} == {"segment_and_detect.ipynb", "drive.ipynb"}
