"""Tests that things have one name: arguments of the clients, their streams and the commands, and spellings of flags."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any

import pytest

import voxserve
import voxserve.evaluate.command
import voxserve.export.__main__
import voxserve.maps.command
import voxserve.view.command
from voxserve import ray, stream_state
from voxserve.cli import main
from voxserve.cli.flag_parser import FlagParser

SOURCES = Path(voxserve.__file__).parent
REPOSITORY = Path(__file__).resolve().parents[3]
CALLS = ("segment", "infer", "detect", "tensors", "stream")


def parameters(function: Any) -> dict[str, inspect.Parameter]:
    return {name: each for name, each in inspect.signature(function).parameters.items() if name != "self"}


def test_calls_have_the_same_arguments() -> None:
    every = [parameters(getattr(voxserve.Client, name)) for name in CALLS]
    for name in ("model", "points", "fields", "scales", "version", "priority", "sample", "outputs", "tensor_type"):
        kinds = {(p[name].default, str(p[name].annotation), p[name].kind) for p in every if name in p}
        assert len(kinds) == 1, name
    common = {"model", "fields", "scales", "version", "priority", "sample", "timeout"}
    for each in every:
        assert common <= set(each)


def test_both_clients_have_the_same_arguments() -> None:
    methods = [name for name, each in vars(voxserve.Client).items() if callable(each) and not name.startswith("_")]
    assert set(CALLS) < set(methods)
    for name in methods:
        assert list(parameters(getattr(voxserve.Client, name))) == list(parameters(getattr(voxserve.aio.Client, name)))
    assert list(parameters(voxserve.Client)) == list(parameters(voxserve.aio.Client))
    assert list(parameters(voxserve.Stream.send)) == list(
        parameters(voxserve.aio.Client.stream.__globals__["Stream"].send)
    )


def test_models_are_named_by_the_same_argument() -> None:
    for name in ("model", "load_model", "unload_model", "tune_plan", *CALLS):
        assert next(iter(parameters(getattr(voxserve.Client, name)))) == "model", name
    assert {"model", "fields", "version"} <= set(parameters(ray.label)) & set(parameters(ray.ScanLabeller))
    config = {field for field in stream_state.StreamConfig.__dataclass_fields__ if field != "tensors"}
    assert config <= set(parameters(voxserve.Client.stream))


@pytest.mark.parametrize("command", ["infer", "batch"])
def test_flags_have_the_names_of_arguments(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main.main([command, "--help"])
    flags = set(re.findall(r"^  --([a-z_]+)", capsys.readouterr().out, re.MULTILINE))
    arguments = set(parameters(voxserve.Client.infer)) | set(parameters(voxserve.Client))
    shared = {"model", "version", "fields", "outputs", "tensor_type", "sample", "timeout", "address", "tls_ca",
              "tls_certificate", "tls_key", "max_message_bytes"}  # fmt: skip
    assert shared <= flags & arguments
    of_sample = {flag.removeprefix("sample_") for flag in flags if flag.startswith("sample_")}
    assert of_sample == {"use", "start"}  # of FarthestPoints: use, start_index


# ---- spellings


def make() -> FlagParser:
    parser = FlagParser(prog="x", allow_abbrev=False)
    parser.add_argument("--max_message_bytes", type=int, default=1)
    commands = parser.add_subparsers(dest="command")
    run = commands.add_parser("run", allow_abbrev=False)
    run.add_argument("--voxel_size")
    run.add_argument("rest", nargs="*")
    return parser


@pytest.mark.parametrize("flag", ["--voxel_size", "--voxel-size"])
@pytest.mark.parametrize("limit", ["--max_message_bytes", "--max-message-bytes", "--max-message_bytes"])
def test_both_spellings_are_taken(flag: str, limit: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for words in ([f"{limit}=7", "run", flag, "0.1"], [limit, "7", "run", f"{flag}=0.1"]):
        options = make().parse_args(words)
        assert (options.max_message_bytes, options.voxel_size) == (7, "0.1")
        monkeypatch.setattr("sys.argv", ["x", *words])
        assert make().parse_args().voxel_size == "0.1"


def test_other_words_stay_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    options = make().parse_args(["run", "a-b", "--", "--voxel-size"])
    assert (options.rest, options.voxel_size) == (["a-b", "--voxel-size"], None)
    with pytest.raises(SystemExit):
        make().parse_args(["run", "--voxel-sizes", "1"])
    assert "unrecognized arguments: --voxel-sizes" in capsys.readouterr().err


def test_every_command_takes_both(capsys: pytest.CaptureFixture[str]) -> None:
    for path in SOURCES.rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        assert "argparse.ArgumentParser(\n" not in text, f"{path} has a parser of its own"
        documented = re.findall(r'"(--[a-z]+-[a-z-]+)",?', text)
        own = [flag for flag in documented if flag not in RERUNS]
        assert own == [], f"{path}: the documented spelling has underscores"


RERUNS = {"--serve-web", "--web-viewer-port", "--hide-welcome-screen"}  # flags of Rerun's viewer
