"""A hostile server attacks clients: voxserve-client, and voxserve.Client of Python."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import grpc
import numpy as np
import pytest
from hostile_server import HostileServer

import voxserve
from voxserve import aio, wire

SCAN = Path(__file__).resolve().parents[2] / "deploy" / "scans" / "pandaset_070.bin"
POINTS = np.zeros((10, 4), np.float32)
NO_MESSAGE = b"\xff\xff\xff\xff"
# A client that takes such an answer for the end of the answers waits until the server ends the call.
FAILS_AT_ONCE_SECONDS = 20
MEBIBYTE = 1 << 20
PYTHON = [sys.executable, "-m", "voxserve"]
DESCRIPTION = wire.GetModelResponse(model=wire.ModelVersion(name="m", version=1)).SerializeToString()


@dataclass
class Done:
    status: int
    stdout: bytes
    stderr: bytes
    seconds: float
    peak_bytes: int  # resident


def run(folder: Path, *arguments: object) -> Done:
    start = time.monotonic()
    outputs = [folder / "stdout", folder / "stderr"]
    with outputs[0].open("wb") as stdout, outputs[1].open("wb") as stderr:
        process = subprocess.Popen([str(part) for part in arguments], stdout=stdout, stderr=stderr)
        peak = 0
        while process.poll() is None:
            # wait4's maximum would include this process, which the new one was before it began its program.
            with contextlib.suppress(OSError):
                found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{process.pid}/status").read_text())
                peak = int(found[1]) << 10 if found else peak
            if time.monotonic() > start + 120:
                process.kill()
            time.sleep(0.005)
    return Done(process.returncode, *(path.read_bytes() for path in outputs), time.monotonic() - start, peak)


@pytest.fixture(scope="module")
def binary() -> str:
    path = os.environ.get("VOXSERVE_CLIENT_BINARY")
    if not path:
        pytest.skip("VOXSERVE_CLIENT_BINARY does not name the C++ client; tests/run.sh sets it")
    return path


@pytest.mark.parametrize(
    ("method", "command"),
    [
        ("InferStream", ["bench", SCAN, "--model=m", "--streams=1", "--duration=1s", "--warm_up=0s"]),
        ("TunePlan", ["tune", "--model=m"]),
        ("Infer", ["infer", "--model=m", SCAN]),
        ("ListModels", ["models"]),
    ],
)
def test_an_answer_that_is_no_message_ends_a_command_at_once(
    binary: str, tmp_path: Path, method: str, command: list[object]
) -> None:
    with HostileServer({"GetModel": [DESCRIPTION], method: [NO_MESSAGE]}) as server:
        flag = "--admin_address" if method == "TunePlan" else "--address"
        done = run(tmp_path, binary, *command, f"{flag}={server.address}")
    assert done.status == 1
    assert b"the server's answer is malformed: bytes that are no " in done.stderr + done.stdout
    assert done.seconds < FAILS_AT_ONCE_SECONDS


@pytest.mark.parametrize("program", ["cpp", "python"])
def test_an_answer_over_the_limit_is_not_kept(binary: str, tmp_path: Path, program: str) -> None:
    start = [binary] if program == "cpp" else PYTHON
    with HostileServer({"GetModel": [DESCRIPTION], "Infer": [bytes(400 * MEBIBYTE)]}) as server:
        done = run(tmp_path, *start, "infer", "--model=m", SCAN, f"--address={server.address}")
    assert done.status == 1
    if program == "cpp":
        assert b"is larger than max_message_bytes (67108864), and was given up; raise max_message_bytes" in done.stderr
    else:
        assert b"larger than max (419430400 vs. 67108864)" in done.stderr
        assert b"see max_message_bytes of the client" in done.stderr
    if program == "cpp" or tuple(map(int, grpc.__version__.split(".")[:2])) >= (1, 84):
        assert done.peak_bytes < 200 * MEBIBYTE


def test_answers_that_are_no_messages_end_calls_of_python_at_once() -> None:
    start = time.monotonic()
    with HostileServer({"Infer": [NO_MESSAGE], "InferStream": [NO_MESSAGE]}) as server:
        with voxserve.Client(server.address) as client:
            with pytest.raises(voxserve.InferenceError) as caught:
                client.segment("m", POINTS)
            assert caught.value.reason == "MALFORMED_RESPONSE"
            with client.stream("m") as stream:
                stream.send(0, POINTS)
                with pytest.raises(voxserve.InferenceError) as caught:
                    list(stream)
            assert caught.value.reason == "MALFORMED_RESPONSE"

        async def over_asyncio() -> None:
            async with aio.Client(server.address) as client:
                with pytest.raises(voxserve.InferenceError) as caught:
                    await client.segment("m", POINTS)
                assert caught.value.reason == "MALFORMED_RESPONSE"
                async with client.stream("m") as stream:
                    await stream.send(0, POINTS)
                    with pytest.raises(voxserve.InferenceError) as caught:
                        async for _ in stream:
                            pass
                assert caught.value.reason == "MALFORMED_RESPONSE"

        asyncio.run(over_asyncio())
    assert time.monotonic() - start < FAILS_AT_ONCE_SECONDS


# ---- escape sequences

# Clears the screen, sets the title, turns text red by one character (CSI of C1), begins a line, turns text round.
ESCAPES = "\x1b[2J\x1b]0;title\x07\u009b31m\r\nforged: all is well\u202e"


def described() -> wire.ModelVersion:
    """Returns a model whose every text is hostile."""
    return wire.ModelVersion(
        name=f"m{ESCAPES}",
        version=1,
        state=wire.MODEL_STATE_READY,
        description=ESCAPES,
        problems=[ESCAPES],
        device=ESCAPES,
        digest=ESCAPES,
        has_labels=True,
        classes=[wire.ClassInfo(id=0, name=ESCAPES)],
        features=[wire.FeatureInfo(name=ESCAPES, unit=ESCAPES)],
    )


def labelled(num_points: int) -> wire.InferResponse:
    return wire.InferResponse(
        model=ESCAPES,
        version=1,
        device=ESCAPES,
        segmentation=wire.Segmentation(labels=bytes(num_points), bytes_per_label=1, ignore_label=255, num_classes=1),
        stages=[wire.StageDuration(name=ESCAPES, microseconds=1)],
        warnings=[wire.FeatureWarning(feature=ESCAPES, num_checked=1, num_outside=1)],
    )


def assert_printable(done: Done) -> None:
    text = (done.stdout + done.stderr).decode()  # UTF-8
    assert "forged" in text, "the hostile text was shown"
    bad = {character for character in text if not character.isprintable()} - {"\n"}
    assert not bad, text
    assert not re.search("^forged", text, re.MULTILINE), text


COMMANDS = {
    "models": (["models"], "cpp python"),
    "model": (["models", "m"], "cpp python"),
    "infer": (["infer", "--model=m", SCAN], "cpp python"),
    "infer_as_json": (["infer", "--model=m", "--json", SCAN], "cpp"),
    "bench": (["bench", "--model=m", SCAN, "--duration=200ms", "--warm_up=0s"], "cpp"),
    "tune": (["tune", "--model=m"], "cpp"),
}


@pytest.mark.parametrize(
    ("program", "command"), [(each, name) for name, (_, programs) in COMMANDS.items() for each in programs.split()]
)
@pytest.mark.parametrize("fails", [False, True])
def test_no_text_of_a_server_controls_the_terminal(
    binary: str, tmp_path: Path, program: str, command: str, fails: bool
) -> None:
    failure: list[bytes | tuple[str, str]] = [("NOT_FOUND", f"no such model: {ESCAPES}")]
    result = wire.TunePlanResult(device=ESCAPES, path=ESCAPES)
    progress = wire.TunePlanProgress(stage=ESCAPES)
    good: dict[str, list[bytes | tuple[str, str]]] = {
        "GetModel": [wire.GetModelResponse(model=described()).SerializeToString()],
        "ListModels": [wire.ListModelsResponse(models=[described()]).SerializeToString()],
        "Infer": [labelled(SCAN.stat().st_size // 16).SerializeToString()],
        "TunePlan": [
            wire.TunePlanUpdate(progress=progress).SerializeToString(),
            wire.TunePlanUpdate(result=result).SerializeToString(),
            ("OK", ""),
        ],
    }
    words = COMMANDS[command][0]
    flag = "--admin_address" if command == "tune" else "--address"
    with HostileServer(dict.fromkeys(good, failure) if fails else good) as server:
        done = run(tmp_path, *([binary] if program == "cpp" else PYTHON), *words, f"{flag}={server.address}")
    assert done.status == int(fails), done.stderr
    assert_printable(done)


# ---- files


@pytest.mark.parametrize("program", ["cpp", "python"])
@pytest.mark.parametrize("kind", ["pipe", "device"])
def test_a_scan_that_is_no_file_is_refused_at_once(binary: str, tmp_path: Path, program: str, kind: str) -> None:
    path = tmp_path / "scan.bin"
    os.mkfifo(path) if kind == "pipe" else path.symlink_to("/dev/zero")
    start = [binary] if program == "cpp" else PYTHON
    with HostileServer({"GetModel": [DESCRIPTION]}) as server:
        done = run(tmp_path, *start, "infer", "--model=m", path, f"--address={server.address}")
    assert done.status == 1
    assert re.search(rb"(not a file|Not a regular file)", done.stderr), done.stderr
    assert done.seconds < FAILS_AT_ONCE_SECONDS
    assert done.peak_bytes < 400 * MEBIBYTE
