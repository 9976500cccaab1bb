"""Tests deploy/release.sh: what it refuses, its notes and checksums. (What it builds takes minutes: deploy/wheel.)"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import tarfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
CHANGELOG = """# Changelog

## 1.3.0

Not released yet.

## 1.2.3{date}

The second version.

### Added

- a thing

## 1.2.2 (2026-01-01)

The first version.
"""


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A repository with the script, a version and a changelog; every file is committed."""
    if shutil.which("git") is None:
        pytest.skip("git is not installed")
    tree = tmp_path / "tree"
    for folder in ("deploy", "client/python", ".github"):
        (tree / folder).mkdir(parents=True)
    for name in ("release.sh", "steps.sh"):
        shutil.copy(ROOT / "deploy" / name, tree / "deploy")
    (tree / "client" / "python" / "VERSION").write_text("1.2.3\n")
    (tree / ".gitignore").write_text("build/\n")
    write_changelog(tree, " (2026-12-01)")
    git(tree, "init", "-q")
    commit(tree)
    return tree


def write_changelog(tree: Path, date: str) -> None:
    (tree / ".github" / "CHANGELOG.md").write_text(CHANGELOG.format(date=date))


def git(tree: Path, *words: str) -> None:
    command = ["git", "-C", str(tree), "-c", "user.name=a", "-c", "user.email=a@b", *words]
    subprocess.run(command, check=True, capture_output=True, timeout=30)


def commit(tree: Path) -> None:
    git(tree, "add", "-A")
    git(tree, "commit", "-qm", "all")


def release(tree: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [str(tree / "deploy" / "release.sh"), "--notes", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def test_sources_notes_and_checksums(tree: Path) -> None:
    done = release(tree)
    assert done.returncode == 0, done.stderr
    folder = tree / "build" / "release-1.2.3"
    assert (folder / "NOTES.md").read_text() == "The second version.\n\n### Added\n\n- a thing\n"
    with tarfile.open(folder / "voxserve-1.2.3.tar.gz") as sources:
        assert "voxserve-1.2.3/client/python/VERSION" in sources.getnames()
    sums = dict(reversed(line.split("  ")) for line in (folder / "SHA256SUMS").read_text().splitlines())
    assert list(sums) == ["NOTES.md", "voxserve-1.2.3.tar.gz"]
    assert all(hashlib.sha256((folder / name).read_bytes()).hexdigest() == digest for name, digest in sums.items())

    again = release(tree)
    assert again.returncode == 1
    assert "is not empty" in again.stderr
    assert release(tree, str(tree / "build" / "other")).returncode == 0


def test_a_version_without_a_date_is_a_draft(tree: Path) -> None:
    write_changelog(tree, "")
    commit(tree)
    done = release(tree)
    assert done.returncode == 1
    assert "the section of 1.2.3 in .github/CHANGELOG.md has no date" in done.stderr
    assert release(tree, "--draft").returncode == 0


def test_changes_must_be_committed(tree: Path) -> None:
    (tree / "new").write_text("")
    done = release(tree)
    assert done.returncode == 1
    assert "not committed" in done.stderr
    assert release(tree, "--draft").returncode == 0


def test_a_version_that_the_changelog_lacks(tree: Path) -> None:
    (tree / "client" / "python" / "VERSION").write_text("1.2.4\n")
    done = release(tree, "--draft")
    assert done.returncode == 1
    assert 'has no section "## 1.2.4"' in done.stderr


def test_this_tree_can_be_released(tmp_path: Path) -> None:
    if not (ROOT / ".git").exists():
        pytest.skip("this is no repository")
    done = subprocess.run(
        [str(ROOT / "deploy" / "release.sh"), "--draft", "--notes", str(tmp_path)],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "NOTES.md").read_text().startswith("The first version.")
