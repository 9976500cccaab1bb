"""Checks that whoever gets data or an interface of somebody else gets its terms too, and that the workflow for pull
requests runs what anybody can run.
"""

from __future__ import annotations

import pathlib
import re

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    "folder", ["deploy/scans", "deploy/images", "deploy/models/minkunet", "deploy/models/centerpoint", "tests/golden"]
)
def test_data_of_pandaset_has_its_terms_beside_it(folder: str) -> None:
    text = (ROOT / folder / "LICENSE.md").read_text(encoding="utf-8")
    for words in (
        "CC BY 4.0",
        "https://creativecommons.org/licenses/by/4.0/",
        "Hesai and Scale AI",
        "https://pandaset.org",
    ):
        assert words in text
    for name in re.findall(r"`([\w.*]+\.\w+)`", text):
        assert list((ROOT / folder).glob(name)), name


def test_scans_and_weights_of_the_repository_are_among_these() -> None:
    folders = ("deploy/scans", "deploy/models/minkunet", "deploy/models/centerpoint", "tests/golden")
    for suffix in ("*.bin", "*.safetensors", "*.u8"):
        for path in [*(ROOT / "deploy").rglob(suffix), *(ROOT / "tests/golden").rglob(suffix)]:
            assert str(path.relative_to(ROOT)).startswith(folders)


def test_published_interfaces_name_their_authors() -> None:
    notice = (ROOT / "proto/NOTICE").read_text(encoding="utf-8")
    protos = [path.relative_to(ROOT / "proto") for path in (ROOT / "proto").rglob("*.proto")]
    published = [path for path in protos if path.parts[0] != "voxserve"]
    assert len(published) >= 7
    for path in published:
        assert f"{path}" in notice
        header = (ROOT / "proto" / path).read_text(encoding="utf-8").split("syntax =")[0]
        assert "(proto/NOTICE)." in header


def test_the_image_carries_the_notices() -> None:
    dockerfile = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    assert re.search(r"^COPY LICENSE /usr/share/doc/voxserve/$", dockerfile, re.MULTILINE)
    assert "COPY --from=build /src/proto/NOTICE /usr/share/doc/voxserve/" in dockerfile
    assert "COPY deploy/models /models" in dockerfile  # with their LICENSE.md


def test_the_workflow_runs_what_anybody_can_run() -> None:
    text = (ROOT / ".github/workflows/ci.yml").read_text(encoding="utf-8")
    assert re.search(r"^ +- run: \.ci/run$", text, re.MULTILINE)
    supported = (ROOT / ".github/CONTRIBUTING.md").read_text(encoding="utf-8")
    for image, name in (("debian:12", "Debian 12"), ("ubuntu:24.04", "Ubuntu 24.04")):
        assert f'"{image}"' in text
        assert name in supported
