"""Tests a server whose --model_repository is the folder of one model, or a folder that is no repository."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from identity_calls import StartServer, few_points
from identity_files import REPOSITORY

import voxserve

MODELS = REPOSITORY / "deploy" / "models"


def test_one_models_folder_is_served(start: StartServer, tmp_path: Path) -> None:
    """Under the folder's name, without its neighbours; a new version and the operator's calls work as ever."""
    mine = tmp_path / "minkunet_mine"
    shutil.copytree(MODELS / "minkunet", mine)
    shutil.copytree(MODELS / "centerpoint", tmp_path / "neighbour")
    server = start(f"--model_repository={mine}", "--model_poll_seconds=0.2")
    with voxserve.Client(server.address, admin_address=server.admin_address, timeout=60) as client:
        assert [model.name for model in client.models()] == ["minkunet_mine"]
        assert len(client.segment("minkunet_mine", few_points())) == len(few_points())
        shutil.copytree(mine / "1", tmp_path / "copy")
        (tmp_path / "copy").rename(mine / "2")
        assert 2 in client.load_model("minkunet_mine", 2)
        assert client.model("minkunet_mine").version == 2
        assert 2 in client.unload_model("minkunet_mine")
        with pytest.raises(voxserve.NotFoundError, match="there is minkunet_mine"):
            client.load_model("neighbour")


def test_a_version_is_refused_with_the_fix(binary: str, tmp_path: Path) -> None:
    log = tmp_path / "log"
    with log.open("wb") as out:
        done = subprocess.run(
            [binary, f"--model_repository={MODELS / 'minkunet' / '1'}", "--port=0", "--http_port=0"],
            stderr=out, timeout=60,
        )  # fmt: skip
    assert done.returncode == 1
    (error,) = re.findall(r"ERROR .*", log.read_text())
    assert "is one version of a model; name the model" in error
    assert "s folder, the one above it, or the folder of all models" in error
