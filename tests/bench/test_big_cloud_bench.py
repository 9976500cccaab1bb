"""Tests which models big_cloud_bench.py refuses, and that a server that does not end is killed."""

from __future__ import annotations

import subprocess
from pathlib import Path

import big_cloud_bench
import pytest
import started_server


def model_in(folder: Path, config: str) -> Path:
    model = folder / "mine"
    (model / "1").mkdir(parents=True)
    (model / "config.textproto").write_text(config)
    return model


def test_a_copy_has_the_limits(tmp_path: Path) -> None:
    model = model_in(tmp_path, "# max_points: 5\nignore_label: 0")
    (tmp_path / "out").mkdir()
    copied = big_cloud_bench.copy_with_limit(model, tmp_path / "out", 7)
    assert copied == tmp_path / "out/mine"
    assert (copied / "config.textproto").read_text() == (
        "# max_points: 5\nignore_label: 0\nmax_points: 7\nmax_voxels: 7\n"
    )
    assert (model / "config.textproto").read_text() == "# max_points: 5\nignore_label: 0"


@pytest.mark.parametrize("field", ["max_points", "max_voxels"])
def test_a_model_with_limits_is_refused(tmp_path: Path, field: str) -> None:
    model = model_in(tmp_path, f"ignore_label: 0\n  {field} : 3\n")
    with pytest.raises(SystemExit, match=rf"config\.textproto:2: the model has {field} already"):
        big_cloud_bench.copy_with_limit(model, tmp_path / "out", 7)


def test_a_version_with_a_configuration_of_its_own_is_refused(tmp_path: Path) -> None:
    model = model_in(tmp_path, "")
    (model / "1/config.textproto").touch()
    with pytest.raises(SystemExit, match=r"1/config\.textproto: a version with its own configuration"):
        big_cloud_bench.copy_with_limit(model, tmp_path / "out", 7)


def test_a_server_that_does_not_end_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(started_server, "STOP_SECONDS", 0.1)
    server = tmp_path / "server"
    server.write_text("#!/bin/sh\ntrap '' TERM\necho ' grpc_port=12' >&2\necho 'models loaded' >&2\nexec sleep 60\n")
    server.chmod(0o755)
    with (
        pytest.raises(subprocess.TimeoutExpired),
        started_server.started(str(server), tmp_path) as (process, address),
    ):
        assert address == "localhost:12"
    assert process.returncode == -9
